"""How soon arms reach the baseline's end and a target, in tokens, FLOPs and seconds, by hand."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from speed_records import BASE, FAST, SLOW, build_record

from ablate.sweeps.comparison import compare_record
from ablate.sweeps.speed import compare_speeds, compare_times
from benchmarks.simulation.curves import Curves, build_spec, run_stages

N = len(BASE)


def test_a_better_arm_is_faster_in_tokens_and_in_flops_by_the_same_test():
    record = build_record({"base": BASE, "fast": FAST, "slow": SLOW}, {"fast": {"flops_per_update": 150.0}})
    fast, slow = compare_speeds(record).values()
    assert compare_record(record)["fast"].kind == "better"
    means = [statistics.fmean(curve[place] for curve in FAST) for place in (25, 50)]
    at = 25 + 25 * (means[0] - 2.02) / (means[0] - means[1])
    assert fast.updates.at == pytest.approx(at)
    assert fast.shares["tokens"].value == pytest.approx(at / 100)
    assert fast.shares["flops"].value == pytest.approx(1.5 * at / 100)
    assert fast.shares["tokens"].low < at / 100 < fast.shares["tokens"].high < 0.6
    assert fast.claimed == ("tokens", "flops")
    assert (slow.is_reached, slow.claimed, slow.shares["tokens"].low, slow.reached) == (False, (), 1.0, 0)


def test_the_interval_is_that_of_the_verdict_at_each_validation():
    record = build_record({"base": BASE, "fast": FAST})
    level = compare_record(record)["fast"].versus.level
    gaps = [[a[place] - b[100] for a, b in zip(FAST, BASE, strict=True)] for place in (25, 50)]
    half = [stats.t.ppf(1 - level / 2, N - 1) * statistics.stdev(own) / math.sqrt(N) for own in gaps]
    tops = [statistics.fmean(own) + width for own, width in zip(gaps, half, strict=True)]
    assert compare_speeds(record)["fast"].updates.high == pytest.approx(25 + 25 * tops[0] / (tops[0] - tops[1]))


def test_dear_updates_are_faster_in_tokens_alone():
    record = build_record({"base": BASE, "fast": FAST}, {"fast": {"flops_per_update": 300.0}})
    (fast,) = compare_speeds(record).values()
    assert fast.claimed == ("tokens",)
    assert fast.shares["flops"].value > 1


def test_seconds_are_described_with_the_interval_of_both():
    record = build_record({"base": BASE, "fast": FAST}, {"fast": {"seconds_per_update": 0.75}})
    share = compare_speeds(record)["fast"].shares
    assert share["seconds"].value == pytest.approx(1.5 * share["tokens"].value)
    assert share["seconds"].high == pytest.approx(1.5 * share["tokens"].high)
    assert "seconds" not in compare_speeds(record)["fast"].claimed
    shared = build_record({"base": BASE, "fast": FAST}, {"fast": {"company": 1}})
    assert "seconds" not in compare_speeds(shared)["fast"].shares


def test_at_equal_seconds_they_are_claimed():
    record = build_record(
        {"base": BASE, "fast": FAST}, {"fast": {"seconds_per_update": 0.75}}, compare={"at": "seconds"}
    )
    fast = compare_speeds(record)["fast"]
    assert fast.claimed == ("seconds",)
    assert fast.shares["seconds"].value < 1
    assert fast.shares["seconds"].high < 1


def test_at_equal_seconds_curves_are_read_along_them():
    """Each seed has its own seconds; the first is the slowest, so that all have a value at its validations."""
    record = build_record({"base": BASE, "fast": FAST}, compare={"at": "seconds"})
    each = {seed: 0.7 - seed / 50 for seed in record.spec.fresh_seeds()}
    rows = [
        replace(run, costs={**run.costs, "seconds_per_update": each.get(run.seed, 0.7)}) if run.arm == "fast" else run
        for run in record.runs
    ]
    share = compare_speeds(replace(record, runs=record.runs.replace(rows)))["fast"].shares["seconds"]
    left, right = (updates * each[1] / 50 for updates in (25, 50))  # shares of the 50 seconds of the baseline
    before, after = (
        statistics.fmean(
            np.interp(50 * place / own, [*curve], [*curve.values()])
            for own, curve in zip(each.values(), FAST, strict=True)
        )
        for place in (left, right)
    )
    assert share.value == pytest.approx(left + (right - left) * (before - 2.02) / (before - after))


def test_failed_seeds_and_those_that_never_get_there_stay_last():
    curves = {"base": [*BASE, None, BASE[0]], "arm": [None, *FAST[1:], FAST[0], SLOW[0]]}
    (arm,) = compare_speeds(build_record(curves)).values()
    assert (arm.seeds, arm.pairs, arm.reached, arm.failed, arm.other_failed) == (7, 5, 4, 1, 1)
    assert arm.median.high == math.inf
    assert arm.median.low == 0.0  # the seed on which the baseline failed
    assert arm.median.value < 0.6
    assert arm.claimed == ()


def test_a_target_is_compared_between_both_curves():
    record = build_record({"base": BASE, "fast": FAST, "slow": SLOW}, target=3.5)
    fast, slow = compare_times(record).values()
    base = 25 + 25 * (4.02 - 3.5) / 1.0
    assert fast.goal == 3.5
    assert fast.updates.at == 25  # it is there at its first validation
    assert fast.shares["tokens"].value == pytest.approx(25 / base)
    assert fast.claimed == ("tokens", "flops")
    assert slow.claimed == ()
    assert slow.shares["tokens"].value > 1
    assert compare_record(record)["fast"].family == 4  # two comparisons of ends, two of times


def test_a_target_that_the_baseline_does_not_reach_has_no_share():
    record = build_record({"base": BASE, "fast": FAST}, target=1.7)
    (fast,) = compare_times(record).values()
    assert (fast.is_reached, fast.shares, fast.claimed) == (True, {}, ())


def test_a_target_is_not_claimed_where_the_baseline_may_be_there_or_the_arm_fails_more():
    fast = [{25: 2.5 + i / 70, 50: 1.9, 100: 1.5 + i / 90} for i in range(N)]
    uneven = [
        {25: early, **{at: value for at, value in BASE[i].items() if at > 25}}
        for i, early in enumerate((1, 7, 2, 6, 5))
    ]
    (one,) = compare_times(build_record({"base": uneven, "fast": fast}, target=3.1)).values()
    assert (one.shares["tokens"].high < 1, one.claimed) == (True, ())
    (one,) = compare_times(build_record({"base": BASE, "fast": fast}, target=3.1)).values()
    assert one.claimed == ("tokens", "flops")
    (one,) = compare_times(build_record({"base": [*BASE, BASE[0]], "fast": [*fast, None]}, target=3.1)).values()
    assert (one.shares["tokens"].high < 1, one.claimed) == (True, ())


def test_without_a_target_or_a_verdict_there_is_nothing():
    record = build_record({"base": BASE, "fast": FAST})
    assert compare_times(record) == {}
    assert compare_speeds(build_record({"base": [], "fast": []}, confirm={"seeds": 3})) == {}
    short = build_record({"base": [{100: 2.0 + i / 9} for i in range(3)], "arm": [{100: 1.0}] * 3})
    assert compare_speeds(short)["arm"].updates is None


def test_at_a_grid_each_point_is_compared_with_the_baseline_there():
    record = build_record({"base": BASE, "fast": FAST}, sampler="grid", search={}, confirm={"at": "grid", "seeds": N})
    assert list(compare_speeds(record)) == ["fast"]


@pytest.mark.parametrize("looks", [{"seeds": 5}, {"seeds": {"min": 3, "max": 6}, "effect": 1e-6}])
def test_equal_arms_are_rarely_called_faster_and_a_fast_one_often(looks):
    spec, false, found = build_spec(1, looks, target=2.4), 0, 0
    for entropy in range(25):
        noise = {"each": 0.01, "shape": "flat at the end", "entropy": entropy}
        record = run_stages(spec, Curves(**noise))
        false += any(own["arm1"].claimed for own in (compare_speeds(record), compare_times(record)))
        record = run_stages(spec, Curves(speeds=(1.5,), entropy=entropy))
        found += bool(compare_speeds(record)["arm1"].claimed and compare_times(record)["arm1"].claimed)
    assert false <= 3
    assert found >= 20
