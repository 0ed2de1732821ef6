"""What runs cost up to an update, and what they have reached at equal cost, by hand."""

import pytest
from speed_records import build_record, build_run

from ablate.sweeps.budgets import find_budget, find_cost, list_early, read_at, read_outcomes, refuse_seconds
from ablate.sweeps.comparison import compare_record

BASE = [{50: 3.0, 100: 2.0 + i / 10} for i in range(3)]
LONG = [{100: 2.5, 200: 1.5 + i / 10} for i in range(3)]


def compare(at, costs=()):
    return build_record({"base": BASE, "arm": LONG}, costs, compare={"at": at})


def test_a_cost_is_that_of_its_updates_and_of_what_came_before():
    run = build_run("arm", 1, {50: 2.0, 100: 1.0}, items=7, flops_before=900.0)
    assert [find_cost(run, 10, axis) for axis in ("tokens", "flops", "seconds")] == [70, 1900, 5]
    assert find_cost(build_run("arm", 1, {1: 1.0}, seconds_per_update=0), 10, "seconds") is None


def test_a_run_is_read_between_its_validations():
    run = build_run("arm", 1, {50: 3.0, 100: 2.0})
    assert [read_at(run, place) for place in (50, 75, 100)] == [3.0, 2.5, 2.0]
    assert read_at(run, 49) is None
    assert read_at(run, 101) is None


def test_at_the_end_each_run_has_its_last_value():
    record = compare("end")
    assert find_budget(record) is None
    assert [o.value for o in read_outcomes(record, record.fresh("arm")).values()] == [1.5, 1.6, 1.7]
    assert compare_record(record)["arm"].difference.mean == pytest.approx(-0.5)


def test_at_equal_tokens_the_longer_arm_is_read_before_its_end():
    record = compare("tokens")
    assert (find_budget(record), list_early(record)) == (1000, {"arm": 0.5})
    assert [o.value for o in read_outcomes(record, record.fresh("arm")).values()] == [2.5] * 3
    assert compare_record(record)["arm"].difference.mean == pytest.approx(0.4)


def test_at_equal_flops_an_arm_of_dearer_updates_has_fewer():
    record = compare("flops", {"arm": {"flops_per_update": 50.0, "flops_before": 2500.0}})
    assert find_budget(record) == 10_000  # of the baseline; the arm has 2,500 + 200 x 50
    values = [o.value for o in read_outcomes(record, record.fresh("arm")).values()]
    assert values == pytest.approx([2.5 + (150 - 100) / 100 * (end - 2.5) for end in (1.5, 1.6, 1.7)])


def test_at_equal_seconds_the_slowest_run_sets_them():
    record = compare("seconds", {"base": {"seconds_per_update": 1.5}})
    assert find_budget(record) == 100  # 200 updates of the arm, of half a second
    read = [o.value for o in read_outcomes(record, record.fresh("base")).values()]
    assert read == pytest.approx([3.0 + (100 / 1.5 - 50) / 50 * (end - 3.0) for end in (2.0, 2.1, 2.2)])


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ({"company": 2}, "3 of 6 runs shared their machine with other trainings"),
        ({"seconds_per_update": 0, "hardware": "another"}, "differ in hardware: a processor; another"),
        ({"hardware": "another"}, "the runs differ in hardware: a processor; another"),
    ],
)
def test_seconds_of_runs_that_were_not_alike_are_refused(costs, text):
    record = compare("seconds", {"arm": costs})
    assert text in refuse_seconds(record)
    assert read_outcomes(record, record.fresh("arm")) == {}
    assert compare_record(record)["arm"].kind == "figures"


def test_a_run_that_failed_stays_and_one_that_cannot_be_read_is_no_outcome():
    record = build_record({"base": BASE, "arm": [None, {200: 1.0}, LONG[0]]}, compare={"at": "tokens"})
    read = read_outcomes(record, record.fresh("arm"))
    assert [outcome.ending for outcome in read.values()] == ["diverged", "trained"]
