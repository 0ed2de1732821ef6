"""What `auto` chooses, and that no placement is favoured by it."""

import pytest
import torch

from ablate.config import Experiment
from ablate.norms import placements
from ablate.training import speed


@pytest.fixture
def cpu(monkeypatch):
    """cpu(tiles=..., compiler=...): a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def build(tiles=True, compiler=True):
        monkeypatch.setattr(speed, "tiles", lambda: tiles)
        monkeypatch.setattr(speed.shutil, "which", lambda name: "/usr/bin/c++" if compiler else None)

    return build


def chosen(tmp_path, **settings):
    experiment = Experiment.from_mapping({key.replace("__", "."): value for key, value in settings.items()})
    return speed.choose_speed(experiment, experiment.data.load(tmp_path))


@pytest.mark.parametrize(
    ("width", "tiles", "precision"), [(256, True, "bf16-mixed"), (128, True, "32-true"), (256, False, "32-true")]
)
def test_bfloat16_is_for_wide_models_on_cpus_with_tiles(cpu, tmp_path, width, tiles, precision):
    cpu(tiles=tiles)
    assert chosen(tmp_path, model__hidden=width).precision == precision


def test_long_runs_are_compiled_and_short_ones_are_not(cpu, tmp_path):
    cpu()
    short, long = (chosen(tmp_path, model="llama-9m", trainer__max_steps=steps) for steps in (10, 100_000))
    assert (short.compile, long.compile) == (False, True)
    assert "too short" in short.why
    assert "saves" in long.why


def test_without_a_compiler_nothing_is_compiled(cpu, tmp_path):
    cpu(compiler=False)
    assert not chosen(tmp_path, trainer__max_steps=10**6).compile


def test_what_is_set_is_done(cpu, tmp_path):
    cpu(tiles=False)
    found = chosen(tmp_path, trainer__precision="bf16-mixed", trainer__compile=True)
    assert (found.precision, found.compile) == ("bf16-mixed", True)


@pytest.mark.parametrize("family", ["llama", "vit"])
@pytest.mark.parametrize("steps", [10, 3000, 10**6])
def test_every_placement_gets_the_same(cpu, tmp_path, family, steps):
    cpu()
    settings = {"model": family, "trainer.max_steps": steps, "model.hidden": 256}
    found = set()
    for kind in placements:
        experiment = Experiment.from_mapping(settings, {"norm": kind})
        picked = speed.choose_speed(experiment, experiment.data.load(tmp_path))
        found.add((picked.precision, picked.compile, picked.why))
    assert len(found) == 1


def test_the_estimate_is_the_flops_of_the_weights_and_the_attention(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = Experiment.from_mapping({"model": {"hidden": 64, "layers": 2, "mlp": 96, "heads": 2}, "trainer.max_steps": 7})
    weights = 2 * (4 * 64**2 + 3 * 64 * 96) + 64 * 256
    tokens = 16 * 128 * 7
    flops = (6 * weights + 12 * 2 * 64 * 128) * tokens
    found = speed.estimated_seconds(run, run.data.load(tmp_path))
    assert found == pytest.approx(flops / (speed.CPU_FLOPS * torch.get_num_threads()))
