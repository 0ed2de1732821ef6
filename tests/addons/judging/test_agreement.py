"""A table of a sweep's fresh seeds has the verdict of the sweep."""

import pytest
from reports.hand_built import STUCK, build_record

from ablate.addons.judging.judge import judge
from ablate.sweeps.comparison import compare_record
from ablate.verdict.looks import Looks

PRE = [2.10, 2.14, 2.11, 2.16, 2.12, 2.13, 2.15]
CASES = {
    "better": [value - 0.05 + 0.002 * (i % 3) for i, value in enumerate(PRE)],
    "worse, failed": [2.2, 2.25, None, 2.26, STUCK, 2.24, 2.25],
    "equal": [value + 0.001 * (-1) ** i for i, value in enumerate(PRE)],
    "undecided": [2.0, 2.3, 2.1, 2.2, 2.05, 2.15, 2.3],
    "fails": [None] * 7,
    "tail": [2.05, 2.09, 2.06, 2.11, 2.07, 2.08, 3.2],
}


@pytest.mark.parametrize("effect", [None, 0.02])
@pytest.mark.parametrize("names", [("better", "worse, failed"), ("equal", "undecided"), ("fails", "tail")])
def test_verdicts_intervals_and_levels_are_those_of_the_sweep(names, effect):
    confirm = {"seeds": 7, **({"effect": effect} if effect else {})}
    values = {"pre": PRE, **{name: CASES[name] for name in names}}
    record = build_record(values, confirm=confirm, challenge={"trials": 0})
    expected = compare_record(record)
    given = {"value": "value", "higher_is_better": False, "baseline": "pre", "effect": effect}
    found = judge(record.frame(), where="phase=confirmation", **given)
    for arm, one in expected.items():
        ours = found.compared[arm]
        assert (ours.kind, ours.versus, ours.outcomes) == (one.kind, one.versus, one.outcomes)
        assert (ours.family, ours.looks, ours.failures) == (one.family, one.looks, one.failures)
        assert ours.estimate == one.estimate
    assert {"better", "worse", "undecided", "fails on all seeds"} & {one.kind for one in expected.values()}


def test_looks_are_those_of_the_sweep():
    confirm = {"seeds": {"min": 3, "max": 7}, "effect": 0.02}
    values = {"pre": PRE, "better": CASES["better"]}
    record = build_record(values, confirm=confirm, challenge={"trials": 0}, looks=Looks((3, 4, 7), 7))
    looks = compare_record(record)["better"].looks
    found = judge(
        record.frame(), where="phase=confirmation", baseline="pre", value="value", higher_is_better=False, effect=0.02,
        looks=looks.sizes, planned=looks.planned,
    )  # fmt: skip
    assert found.compared["better"].looks == looks
    assert found.compared["better"].versus == compare_record(record)["better"].versus
