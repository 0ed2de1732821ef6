"""What an update needs, against formulas written out here."""

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ablate.distributed import ranks
from ablate.estimate.flops import estimate_work
from ablate.estimate.inputs import build_skeleton
from ablate.estimate.memory import ORTHOGONALISED, WORKSPACE, Meter, Setup
from ablate.estimate.updates import measure_update
from ablate.experiment.tree import Experiment
from ablate.optim.libraries import TIMM, TORCH

LIBRARIES = {"torch": TORCH, "timm": TIMM}
WIDTH, MLP, LAYERS, VOCABULARY, LENGTH = 64, 176, 5, 100, 16
SIZES = {"model": {"hidden": WIDTH, "mlp": MLP, "layers": LAYERS, "heads": 4, "kv_heads": 2}}
MATRICES = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH // 2 + 3 * WIDTH * MLP)
REST = 2 * VOCABULARY * WIDTH + (2 * LAYERS + 1) * WIDTH


def orthogonalize(rows, columns, steps=5):
    """FLOPs of Newton-Schulz: in each step the Gram matrix of the shorter side, its square, and its product with X."""
    m, n = sorted((rows, columns))
    return steps * (2 * m * m * n + 2 * m**3 + 2 * m * m * n)


def measure(optimizer):
    experiment = Experiment.from_mapping({**SIZES, "optimizer": optimizer})
    model = build_skeleton(experiment, VOCABULARY, (LENGTH,))
    return experiment, measure_update(model, experiment.optimizer, half=False)


@pytest.mark.parametrize(
    ("kind", "name", "states"), [("torch", "Muon", 1), ("timm", "muon", 1), ("timm", "adamuon", 2)]
)
def test_each_fused_matrix_is_orthogonalised_by_itself(kind, name, states):
    experiment, update = measure({"kind": kind, "name": name})
    layer = 2 * orthogonalize(WIDTH, WIDTH) + 2 * orthogonalize(WIDTH // 2, WIDTH) + 3 * orthogonalize(WIDTH, MLP)
    assert update.flops == LAYERS * layer
    assert update.matrices == 4 * MATRICES
    assert update.largest == 4 * 2 * WIDTH * MLP
    assert update.matrix_states == states
    assert update.states == pytest.approx((states * MATRICES + 2 * REST) / (MATRICES + REST))
    plain = Experiment.from_mapping(SIZES)
    more, less = (estimate_work(one, (VOCABULARY, (LENGTH,))) for one in (experiment, plain))
    assert more.update_flops == experiment.trainer.max_steps * update.flops
    assert more.flops - less.flops == pytest.approx(more.update_flops)


def test_adamw_multiplies_no_matrices():
    _, update = measure("adamw")
    assert (update.states, update.flops, update.matrices, update.largest) == (2, 0, 0, 0)


def test_whole_matrices_count_where_nothing_needs_more():
    """With one short sequence for each device, what the update has is the peak."""
    experiment = Experiment.from_mapping({**SIZES, "optimizer": "muon", "model.layers": 1})
    meter = Meter(experiment, VOCABULARY, (1,))
    update = meter.update(half=False)
    setup = Setup("fsdp", 4, "32-true", 4, 1, False, False)
    found = meter.memory(setup)
    # of one turn weight, gradient and momentum, of the next these and what is sent and received; two that are sent back
    # and what orthogonalises one, three of its size in float32, as a trace of allocations shows
    assert found.parts["temporary"] == pytest.approx(update.largest * (3 + 3 * 3 + 2 * 2 + 3) + WORKSPACE)


@pytest.mark.parametrize(("kind", "name"), [("torch", "Muon"), ("timm", "muon")])
@pytest.mark.parametrize("half", [False, True])
def test_what_orthogonalising_a_square_matrix_allocates(kind, name, half):
    weight = torch.nn.Parameter(torch.randn(512, 512, dtype=torch.bfloat16 if half else torch.float32))
    optimizer = LIBRARIES[kind].create(name, [{"params": [weight], "weight_decay": 0.0}], 0.01, {})
    for _ in range(2):  # the first makes the momentum
        weight.grad = torch.randn_like(weight)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            optimizer.step()
    sizes = [(e.start_ns(), e.nbytes()) for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    peak = np.cumsum([size for _, size in sorted(sizes)]).max()
    assert peak == pytest.approx(ORTHOGONALISED[half] * weight.nbytes, rel=0.25)
    assert peak < 1.05 * ORTHOGONALISED[half] * weight.nbytes


def test_a_rank_of_a_group_plans_alone(monkeypatch):
    """It would wait for the others, which plan nothing."""
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    monkeypatch.setattr(ranks, "gather_objects", lambda value: pytest.fail("waits"))
    _, update = measure("muon")
    assert update.flops > 0
