"""The section `challenge` of a sweep file: what is refused, in which words, and what the plan says of it."""

import math

import pytest
import yaml

from ablate.cli import main
from ablate.config.errors import ConfigError
from ablate.scheduler.preparation import list_differences
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import describe_stages

ARMS = {
    "pre": {"norm": "pre"},
    "mix": {"norm": "mix", "search": {"norm.alpha": [0.25, 0.5], "optimizer.lr": [1e-2, 1e-1]}},
}
RATES = {"optimizer.lr": [1e-3, 1e-2]}
PARTS = {
    "name": "demo",
    "arms": ARMS,
    "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}, "model.tie_embeddings": [True, False]},
    "confirm": {"seeds": 3},
    "confounds": ["optimizer.lr"],
}


def find_problems(**parts):
    with pytest.raises(ConfigError) as caught:
        Sweep.from_tree({**PARTS, **parts})
    return {problem.path: str(problem) for problem in caught.value.problems if problem.path.startswith("challenge")}


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (
            {"optimizer.lrr": [1e-4, 1]},
            "is searched by no arm. Accepted: optimizer.lr, model.tie_embeddings, norm.alpha",
        ),
        ({"optimizer.lrr": [1e-4, 1]}, "Did you mean optimizer.lr?"),
        ({"optimizer.lr": [1, 1e-4]}, "its lowest value must be below its highest (given: [1.0, 0.0001])"),
        ({"optimizer.lr": [1e-2, 1e-2]}, "its lowest value must be below its highest"),
        ({"optimizer.lr": [2e-4, 5e-2]}, "leaves out 0.0001 and 0.1, which the arms search. Search other values, or"),
        ({"optimizer.lr": [None, 5e-2]}, "leaves out 0.1, which the arms search"),
        ({"norm.alpha": [0.3, None]}, "leaves out 0.25, which the arms search"),
        ({"optimizer.lr": [math.nan, 1]}, "number"),
        (
            {"model.tie_embeddings": [0, 1]},
            "only numbers have a bound, at least two of them, and pre searches [True, Fa",
        ),
        ({"optimizer.lr": 0.1}, "must be a list, such as [a, b] (given: 0.1)"),
    ],
)
def test_a_bound_that_cannot_hold_is_refused(bound, message):
    (text,) = find_problems(challenge={"bound": bound}).values()
    assert message in text


def test_bounds_around_what_is_searched_are_accepted():
    bound = {"optimizer.lr": [1e-4, None], "norm.alpha": [0.25, 0.5]}
    sweep = Sweep.from_tree({**PARTS, "challenge": {"bound": bound}})
    assert sweep.axes("pre")["optimizer.lr"].before == 0
    assert sweep.axes("pre")["optimizer.lr"].beyond == 2
    assert (sweep.axes("mix")["norm.alpha"].before, sweep.axes("mix")["norm.alpha"].beyond) == (0, 0)
    assert Sweep.from_tree(yaml.safe_load(sweep.to_yaml())).challenge == sweep.challenge


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"confirm": {"seeds": 3, "at": "grid"}, "sampler": "grid", "search": {"optimizer.lr": [1e-3, 1e-2]}},
            "cannot be combined with confirm.at: grid",
        ),
        ({"confirm": {}}, "needs confirm.seeds: without fresh seeds no arm is told that it lost"),
        ({"search": {}, "arms": {"pre": {"norm": "pre"}}, "budget": {"trials": 1}}, "nothing is searched, so no arm"),
    ],
)
def test_a_challenge_that_no_arm_can_have_is_refused(parts, message):
    assert message in find_problems(challenge={"trials": 3}, **parts)["challenge"]
    with_defaults = {**parts, "challenge": {"trials": 6, "extend": 2}}  # as a sweep is stored
    Sweep.from_tree({**PARTS, "arms": {"pre": ARMS["pre"]}, "search": RATES, **with_defaults})


def test_the_problems_of_a_file_are_told_at_once_with_exit_status_2(tmp_path, capsys):
    file = tmp_path / "bad.yaml"
    bound = {"optimizer.lr": [1, 0.1], "norm.alpha": [0.3, 1]}
    file.write_text(yaml.safe_dump({**PARTS, "confirm": {}, "challenge": {"trials": -1, "bound": bound}}))
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert "challenge.trials" in capsys.readouterr().err
    file.write_text(yaml.safe_dump({**PARTS, "confirm": {}, "challenge": {"trials": 1, "bound": bound}}))
    assert main(["sweep", str(file), "--dry-run"]) == 2
    told = capsys.readouterr().err
    for path in ("challenge:", "challenge.bound.optimizer.lr:", "challenge.bound.norm.alpha:"):
        assert path in told


def test_a_sweep_goes_on_with_more_tries_and_with_nothing_else():
    before, more, other = (
        Sweep.from_tree({**PARTS, "challenge": own}) for own in ({}, {"trials": 18}, {"trials": 18, "extend": 1})
    )
    assert list_differences(before, more) == []
    assert list_differences(more, before) == ["challenge.trials: 18 -> 6"]
    assert list_differences(before, other) == ["challenge.extend: 2 -> 1"]


def test_the_plan_says_what_is_not_tuned():
    search = {"optimizer.lr": [1e-3, 1e-2, 1e-1], "optimizer.eps": [1e-8], "model.tie_embeddings": [True, False]}
    lines = describe_stages(Sweep.from_tree({**PARTS, "arms": {"pre": {"norm": "pre"}}, "search": search}))
    assert "optimizer.eps: one value, so it is not tuned" in lines
    assert "model.tie_embeddings: the values have no order, so they are tried in the search alone" in lines
