"""What an update needs, against formulas written out here."""

import pytest

from ablate.estimate.flops import estimate_work
from ablate.estimate.inputs import build_skeleton
from ablate.estimate.memory import ORTHOGONALISED, WORKSPACE, Meter, Setup
from ablate.estimate.updates import measure_update
from ablate.experiment.tree import Experiment

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
    turns = update.largest * (3 + 3 * 3 + 2 * 2 + ORTHOGONALISED)
    assert found.parts["temporary"] == pytest.approx(turns + WORKSPACE)
