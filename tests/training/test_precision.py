"""What `auto` chooses, and that no placement is favoured by it."""

from types import SimpleNamespace

import pytest
import torch
from norms.cases import list_placements
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.data import build_loader
from ablate.experiment.tree import Experiment
from ablate.training import precision
from ablate.training.procedures import Hooks
from ablate.training.train import train


@pytest.fixture
def cpu(monkeypatch):
    """cpu(tiles=...): a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def build(tiles=True):
        monkeypatch.setattr(precision, "has_tiles", lambda: tiles)

    return build


def chosen(**settings):
    return precision.choose_speed(
        Experiment.from_mapping({key.replace("__", "."): value for key, value in settings.items()})
    )


@pytest.mark.parametrize(
    ("width", "tiles", "precision"), [(256, True, "bf16-mixed"), (128, True, "32-true"), (256, False, "32-true")]
)
def test_bfloat16_is_for_wide_models_on_cpus_with_tiles(cpu, width, tiles, precision):
    cpu(tiles=tiles)
    assert chosen(model__hidden=width).precision == precision


@pytest.mark.parametrize(("major", "precision"), [(7, "32-true"), (8, "bf16-mixed"), (9, "bf16-mixed")])
def test_bfloat16_that_a_gpu_emulates_is_not_chosen(monkeypatch, major, precision):
    """A T4 and a V100 make bfloat16 tensors, and have no hardware for their products."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(major=major))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    assert chosen().precision == precision


def set_device(monkeypatch, gpu):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(precision, "has_gpu_bfloat16", lambda: gpu)


@pytest.mark.parametrize(
    ("gpu", "steps", "settings", "compiles"),
    [
        (True, precision.COMPILED_FROM, {}, True),
        (True, precision.COMPILED_FROM - 1, {}, False),
        (True, 10**6, {"trainer.compile": False}, False),
        pytest.param(True, 10**6, {"model": "gru"}, False, marks=pytest.mark.addons),
        (False, 10**6, {}, False),
        (False, 10, {"trainer.compile": True}, True),
    ],
)
def test_a_gpu_compiles_long_runs_and_a_cpu_only_what_says_it(monkeypatch, gpu, steps, settings, compiles):
    set_device(monkeypatch, gpu)
    found = precision.choose_speed(Experiment.from_mapping({"trainer.max_steps": steps, **settings}))
    assert found.compile is compiles
    assert ("from 2,000 on" in found.why) == (gpu and not settings)


def test_what_is_set_is_done(cpu):
    cpu(tiles=False)
    found = chosen(trainer__precision="bf16-mixed", trainer__compile=True)
    assert (found.precision, found.compile) == ("bf16-mixed", True)


@pytest.mark.parametrize("family", ["llama", "vit"])
@pytest.mark.parametrize("gpu", [False, True])
def test_every_placement_gets_the_same(monkeypatch, family, gpu):
    set_device(monkeypatch, gpu)
    settings = {"model": family, "trainer.max_steps": 3000, "model.hidden": 256}
    found = {
        precision.choose_speed(Experiment.from_mapping(settings, {"norm": kind})) for kind in list_placements(family)
    }
    assert len(found) == 1


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
@pytest.mark.parametrize("compiled", [False, True])
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
