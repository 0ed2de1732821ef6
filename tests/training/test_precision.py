"""What `auto` chooses, and that no placement is favoured by it."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.config.errors import ConfigError
from ablate.data import build_loader
from ablate.distributed import ranks
from ablate.estimate.flops import CPU_FLOPS
from ablate.experiment.tree import Experiment
from ablate.norms import placements
from ablate.training import compilation, precision
from ablate.training.module import TrainingModule
from ablate.training.procedures import Hooks
from ablate.training.train import train
from ablate.training.trainer import check_ranks


@pytest.fixture
def cpu(monkeypatch):
    """cpu(tiles=..., compiler=...): a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def build(tiles=True, compiler=True):
        monkeypatch.setattr(precision, "has_tiles", lambda: tiles)
        monkeypatch.setattr(compilation.shutil, "which", lambda name: "/usr/bin/c++" if compiler else None)

    return build


def chosen(tmp_path, **settings):
    experiment = Experiment.from_mapping({key.replace("__", "."): value for key, value in settings.items()})
    return precision.choose_speed(experiment, experiment.data.load(tmp_path))


@pytest.mark.parametrize(
    ("width", "tiles", "precision"), [(256, True, "bf16-mixed"), (128, True, "32-true"), (256, False, "32-true")]
)
def test_bfloat16_is_for_wide_models_on_cpus_with_tiles(cpu, tmp_path, width, tiles, precision):
    cpu(tiles=tiles)
    assert chosen(tmp_path, model__hidden=width).precision == precision


@pytest.mark.parametrize(("major", "precision"), [(7, "32-true"), (8, "bf16-mixed"), (9, "bf16-mixed")])
def test_bfloat16_that_a_gpu_emulates_is_not_chosen(monkeypatch, tmp_path, major, precision):
    """A T4 and a V100 make bfloat16 tensors, and have no hardware for their products."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    assert chosen(tmp_path).precision == precision


def test_long_runs_are_compiled_and_short_ones_are_not(cpu, tmp_path):
    cpu()
    short, long = (chosen(tmp_path, model="llama-9m", trainer__max_steps=steps) for steps in (10, 100_000))
    assert (short.compile, long.compile) == (False, True)
    assert "too short" in short.why
    assert "saves" in long.why


def test_what_a_sweep_has_chosen_holds_for_its_trials_where_they_leave_it_open(cpu, tmp_path):
    """On a machine without a compiler a trial still trains."""
    always = compilation.Compilation(True, "for the sweep")
    open_run, fixed = (Experiment.from_mapping({"trainer.compile": how}) for how in ("auto", False))
    corpus = open_run.data.load(tmp_path)
    cpu()
    assert precision.choose_speed(open_run, corpus, always).compile is True
    assert "for the sweep" in precision.choose_speed(open_run, corpus, always).why
    assert precision.choose_speed(fixed, corpus, always).compile is False
    cpu(compiler=False)
    assert precision.choose_speed(open_run, corpus, always).compile is False


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
        picked = precision.choose_speed(experiment, experiment.data.load(tmp_path))
        found.add((picked.precision, picked.compile, picked.why))
    assert len(found) == 1


def test_the_estimate_is_the_flops_of_the_weights_and_the_attention(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = Experiment.from_mapping({"model": {"hidden": 64, "layers": 2, "mlp": 96, "heads": 2}, "trainer.max_steps": 7})
    weights = 2 * (4 * 64**2 + 3 * 64 * 96) + 64 * 256
    tokens = 16 * 128 * 7
    flops = (6 * weights + 6 * 2 * 64 * 128) * tokens  # a token attends to half of them
    found = compilation.Runs(run, run.data.load(tmp_path)).seconds
    assert found == pytest.approx(flops / (CPU_FLOPS * torch.get_num_threads()))


def test_what_compiling_saves_is_told_as_a_share_which_holds_on_any_machine(cpu, tmp_path):
    """Of a 7B model on a CPU it would be centuries."""
    cpu()
    run = Experiment.from_mapping({"model": "llama-7b", "trainer.max_steps": 13_000})
    choice = compilation.choose_compilation([compilation.Runs(run, run.data.load(tmp_path), 12)])
    assert choice.why == "saves 9% or more of the time of all 12 runs, and takes 40 s"


class Reads(TorchDispatchMode):
    """Counts how often a number is read from a tensor: with a GPU each time waits for it."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "more", [{}, {"trainer.gradient_clip_val": 1.0, "trainer.accumulate": 2}], ids=["plain", "clipped"]
)
def test_no_number_is_read_between_two_points_of_the_curves(store, family_settings, more):
    run = Experiment.from_mapping(
        family_settings, {"trainer.log_every_n_steps": 5, "trainer.val_check_interval": 12, **more}
    )
    reads, at = Reads(), []
    with reads:
        train(run, hooks=Hooks(asked_to_stop=lambda: bool(at.append(reads.count))))
    updates = {update for update in range(2, 12) if at[update - 1] > at[update - 2]}
    assert updates == {5, 10}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True, "reduce-overhead"])
def test_nothing_waits_for_the_gpu_between_two_points_of_the_curves(store, family_settings, compiled):
    run = Experiment.from_mapping(
        family_settings,
        {"trainer.log_every_n_steps": 100, "trainer.val_check_interval": 12, "trainer.compile": compiled},
    )
    made = iter(range(1, 100))

    def asked_to_stop():  # from the fifth update to the last but one
        torch.cuda.set_sync_debug_mode("error" if 4 < next(made) < 10 else "default")
        return False

    try:
        assert train(run, hooks=Hooks(asked_to_stop=asked_to_stop)).status == "completed"
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_batches_for_a_gpu_are_pinned(monkeypatch):
    assert (
        not build_loader(torch.utils.data.TensorDataset(torch.zeros(4)), None).pin_memory or torch.cuda.is_available()
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert build_loader(torch.utils.data.TensorDataset(torch.zeros(4)), None).pin_memory


def test_cuda_graphs_are_for_one_gpu(cpu, tmp_path, monkeypatch):
    cpu(tiles=False)
    graphs = {"trainer.compile": "reduce-overhead"}
    found = chosen(tmp_path, trainer__compile="reduce-overhead")
    assert (found.compile, "without CUDA graphs" in found.why) == (True, True)
    with pytest.raises(ConfigError, match=r"compile: needs trainer\.accumulate=1"):
        Experiment.from_mapping(graphs, {"trainer.accumulate": 2})
    run = Experiment.from_mapping(graphs)
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    monkeypatch.setattr(ranks, "local_size", lambda: 2)
    with pytest.raises(ConfigError, match=r"trainer\.compile: needs one device, and there are 2 ranks"):
        check_ranks(run.trainer)


def test_a_step_with_cuda_graphs_is_the_same_step(tmp_path, tiny_settings, monkeypatch):
    """What is done around the graphs; on the CPU torch records none."""
    run = Experiment.from_mapping(tiny_settings)
    corpus = run.data.load(tmp_path)
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, mode: asked.append(mode) or function)
    torch.manual_seed(0)
    plain = TrainingModule(run, corpus)
    graphs = TrainingModule(run, corpus, "reduce-overhead", plain.model)
    batch = corpus.train.__getitems__([0, 1])
    plain.training_step(batch, 0).backward()
    wanted = [p.grad.clone() for p in plain.parameters()]
    graphs.training_step(batch, 0).backward()  # begins without the gradients of the last
    assert asked == ["reduce-overhead"]
    assert all(torch.equal(p.grad, grad) for p, grad in zip(graphs.parameters(), wanted, strict=True))
