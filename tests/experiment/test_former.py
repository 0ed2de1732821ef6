"""What a stored configuration meant when it was written."""

import math

import pytest

from ablate.experiment.former import PROFILED, restore_arm, restore_former
from ablate.experiment.tree import DEFAULTS, Experiment

SMALL = math.sqrt(2 / (5 * 64))


def restore(tree, defaults):
    return Experiment.from_mapping(restore_former({"model.hidden": 64, **tree}, defaults))


@pytest.mark.parametrize(
    ("init", "kind", "std", "embedding"),
    [
        ("small_scaled", "scaled", SMALL, None),
        ({"kind": "small_scaled", "std": 0.1}, "scaled", 0.1, None),
        ({"kind": "scaled_embedding", "std": None}, "scaled", None, math.sqrt(2 / 5)),
        ({"kind": "scaled_embedding", "std": 0.1, "embedding_std": None}, "scaled_embedding", 0.1, None),  # of today
        ("scaled", "scaled", None, None),
    ],
)
def test_an_initialisation_draws_the_same_weights_as_then(init, kind, std, embedding):
    found = restore({"init": init}, 1).init
    assert (found.kind, found.std, found.embedding_std) == (kind, std, embedding)
    assert restore({"init": init}, DEFAULTS).init == Experiment.from_mapping({"init": init}).init


@pytest.mark.parametrize(
    "norm", ["admin", {"kind": "admin"}, {"kind": "admin", "layer": "layernorm"}, {"kind": "mix", "first": "admin"}]
)
def test_admin_is_profiled_where_that_was_the_default(norm):
    def start(experiment):
        return getattr(experiment.norm, "first", experiment.norm).start

    assert start(restore({"norm": norm}, PROFILED)) == "profile"
    assert start(restore({"norm": norm}, DEFAULTS)) == "closed_form"


def test_a_start_that_was_given_is_kept():
    assert restore({"norm": {"kind": "admin", "start": "closed_form"}}, 1).norm.start == "closed_form"


def test_so_do_the_arms_of_a_stored_sweep():
    base = {"model.hidden": 64}
    arm = {"norm": "admin", "init": "small_scaled", "optimizer.lr": 3e-3}
    assert restore_arm(base, arm, PROFILED) == {
        "optimizer.lr": 3e-3,
        "norm": {"kind": "admin", "start": "profile"},
        "init": {"kind": "scaled", "std": pytest.approx(SMALL)},
    }
    assert restore_arm(base, arm, DEFAULTS) == arm
    assert restore_arm(base, {"norm": "mix", "norm.alpha": 0.5}, 1) == {"norm": "mix", "norm.alpha": 0.5}
