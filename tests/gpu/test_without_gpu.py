"""The whole step on one CUDA device that is not there, and on 64 ranks of them: what waits, what is where, in which
type. A mistake of devices or types ends the step with torch's own error."""

import pytest
from gpu.cases import PRECISIONS, SHARED, SIZED, STEPS, UPDATES

from ablate.models import models
from ablate.norms import norm_layers, placements

LOGGED = ("batch 1", f"batch {UPDATES}")
NARROW = {"32-true": "float32", "bf16-mixed": "bfloat16", "bf16-true": "bfloat16"}  # type of the matrix products


def results_of(found):
    assert "error" not in found, found["error"]
    return found


def test_every_family_placement_norm_layer_and_precision_is_among_the_cases():
    families, kinds, layers, precisions = map(set, zip(*STEPS.values(), strict=True))
    assert families == set(SIZED)  # what a library names has its own layers
    assert kinds == {*placements} | {"summed_inputs" for family in SIZED if not models[family].has_residuals}
    assert layers == set(norm_layers)
    assert precisions == set(PRECISIONS) == set(NARROW)


def test_the_recorder_sees_what_waits(proof):
    assert results_of(proof["control"])["step"] == {"_local_scalar_dense": 1, "copy across devices": 1, "nonzero": 1}


@pytest.mark.parametrize("case", STEPS)
def test_a_step_waits_for_nothing_and_leaves_nothing_on_the_cpu(proof, case):
    found = results_of(proof["steps"][case])
    assert set(found["products"]) - {"setup"} == {
        *(f"batch {number}" for number in range(1, UPDATES + 1)),
        "validation",
    }
    for phase, waits in found["waits"].items():
        if phase in LOGGED:
            assert waits == {"_local_scalar_dense": 2}, phase  # the loss and the norm of the gradient
        else:
            assert phase in ("setup", "between"), (phase, waits)
    assert found["elsewhere"] == {"parameters": [], "validation": [], "optimizer": []}
    _, kind, _, precision = STEPS[case]
    types = {NARROW[precision], "float32"} if kind == "mhc" else {NARROW[precision]}  # whose maps are in float32
    for phase in ("batch 2", "validation"):
        assert found["products"][phase].keys() == {f"cuda torch.{name}" for name in types}


def test_what_happens_between_two_batches_is_their_transfer_and_a_reading_of_the_validation(proof):
    found = results_of(proof["steps"][next(name for name in STEPS if name.startswith("llama"))])
    batches = UPDATES - 1 + 2  # and two of the validation; the first is fetched before training begins
    assert found["waits"]["between"] == {"copy across devices": 2 * batches, "_local_scalar_dense": 1}


def test_an_average_of_the_weights_waits_for_nothing(proof):
    found = results_of(proof["averaged"])
    assert set(found["waits"]) == {"setup", "between", *LOGGED}
    assert found["products"]["validation"] == {"cuda torch.bfloat16": 2 * 2 * (4 * 2 + 1)}  # both, of two batches


def test_padding_in_accumulated_batches_waits_for_nothing(proof):
    found = results_of(proof["padded"])
    assert all(set(waits) == {"_local_scalar_dense"} for phase, waits in found["waits"].items() if "batch" in phase)
    assert found["elsewhere"] == {"parameters": [], "validation": [], "optimizer": []}


@pytest.mark.parametrize("family", ["llama", "vit"])
def test_the_loss_is_one_graph(proof, family):
    assert results_of(proof["explained"][family]) == {"graphs": 1, "breaks": []}


def test_64_ranks_share_seven_billion_parameters_equally(proof):
    assert results_of(proof["seven"]) == {"parameters": 105_287_744, "devices": ["cuda:0"]}


@pytest.mark.parametrize("case", SHARED)
def test_an_update_reduces_each_unit_once_and_in_float32(proof, case):
    """A unit is a layer, or all the rest. Its weights are gathered before the forward pass and, but for those of the
    rest, once more for the backward pass."""
    found = results_of(proof["shared"][case])
    _, precision, layers = SHARED[case]
    gathered = {f"_allgather_base_ torch.{NARROW[precision]}": 2 * layers}
    rest = f"_allgather_base_ torch.{'bfloat16' if precision == 'bf16-true' else 'float32'}"
    gathered[rest] = gathered.get(rest, 0) + 1
    assert found["collectives"] == {**gathered, "_reduce_scatter_base_ torch.float32": layers + 1}
    assert found["products"].keys() == {f"cuda torch.{NARROW[precision]}"}
    assert found["devices"] == ["cuda:0"]
    assert found["waits"] == {}
