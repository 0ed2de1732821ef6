"""Wrong costs of comparison and wrong targets, each with its sentence."""

import pytest

from ablate.config.errors import ConfigError
from ablate.scheduler.preparation import check_workers
from ablate.sweeps.spec.speed_validation import check_reachable
from ablate.sweeps.spec.sweep import Sweep

ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}
PARTS = {"name": "t", "arms": ARMS, "search": {"optimizer.lr": [1e-3, 1e-2]}, "confirm": {"seeds": 3}}
ONCE = {"trainer": {"max_steps": 100, "val_check_interval": 100}}


def build(**more):
    return Sweep.from_tree({**PARTS, **more})


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"target": -1.0}, "target: is no value to be reached: val/loss lies between 0.000 and inf"),
        ({"target": 2.0, "confirm": {"seeds": 0}}, "target: compares arms on fresh seeds, and this sweep has none"),
        ({"compare": {"at": "flops"}, "confirm": {}}, "compare.at: compares arms on fresh seeds"),
        ({"compare": {"at": "flops"}, "experiment": ONCE}, "compare.at: needs a curve of validations"),
        ({"compare": {"at": "steps"}}, "compare.at"),
        ({"target": 1.5, "objective": {"metric": "val/accuracy"}, "experiment": {"model": "vit-digits"}}, "between 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_a_sentence(more, text):
    with pytest.raises(ConfigError) as error:
        build(**more)
    assert text in str(error.value)


def test_a_factorial_has_no_target():
    parts = {"norm": ["pre", "lns"], "init": ["normal", "scaled"]}
    tree = {**PARTS, "components": parts, "design": "factorial", "target": 2.0}
    with pytest.raises(ConfigError, match="goes with arms against a baseline"):
        Sweep.from_tree({key: value for key, value in tree.items() if key != "arms"})


def test_arms_of_one_length_need_no_curve_at_equal_tokens():
    assert build(compare={"at": "tokens"}, experiment=ONCE).equal_cost == "at equal tokens"
    longer = {"pre": {"norm": "pre"}, "post": {"norm": "post", "trainer.max_steps": 200}}
    with pytest.raises(ConfigError, match="needs a curve of validations, and runs of pre have one point"):
        build(compare={"at": "tokens"}, experiment=ONCE, arms=longer, confounds=["trainer"])


def test_a_target_that_guessing_reaches_is_refused():
    (problem,) = check_reachable(build(target=4.0), {"pre": 4.0, "post": 4.1})
    assert "is reached by a predictor that ignores its inputs, whose loss is 4.000. Accepted: below 3.920" in str(
        problem
    )
    assert not list(check_reachable(build(target=3.5), {"pre": 4.0, "post": None}))
    assert not list(check_reachable(build(), {"pre": 4.0}))


def test_seconds_need_one_worker():
    check_workers(build(compare={"at": "seconds"}), 1)
    check_workers(build(), 2)
    with pytest.raises(ConfigError, match="seconds are compared between runs that trained alone: use one worker"):
        check_workers(build(compare={"at": "seconds"}), 2)


def test_a_target_adds_comparisons_to_the_family():
    assert (build().count_shared(), build(target=2.0).count_shared()) == (1, 2)
