"""Simulated ladders, reduced from `benchmarks/ladder.py`: intervals hold the truth, and equal arms are told apart
rarely."""

import pytest

from benchmarks.simulation.ladders import SIZES, Truth, build_converging, build_curve, count_claims, measure_coverage

LADDERS = 80


@pytest.mark.parametrize("growth", [1.0, 1.5])
def test_the_intervals_hold_the_truth_at_sizes_that_were_not_trained(growth):
    truth = build_converging(1e9, -0.005, growth=growth)
    assert truth.difference(1e9) == pytest.approx(-0.005)
    held = measure_coverage(truth, seeds=4, target=1e9, ladders=LADDERS, draws=400)
    sized = ("difference at the largest size", "speed-up at the largest size")
    for kind in ("difference at the target", *sized, "change"):
        assert held[f"{kind} of"] > 0.9 * LADDERS
        assert held[kind] >= 0.89 * held[f"{kind} of"], kind


def test_five_sizes_foretell_the_largest_and_tell_their_error():
    truth = build_converging(sizes=(*SIZES, 2.56e8))
    held = measure_coverage(truth, seeds=4, target=1e9, ladders=LADDERS // 2, draws=400)
    assert held["error of the prediction"] >= 0.87 * held["error of the prediction of"] > 0.7 * LADDERS // 2


def test_three_sizes_say_nothing_of_others():
    truth = build_converging(sizes=SIZES[:3])
    assert set(measure_coverage(truth, seeds=3, target=1e9, ladders=20, draws=20)) == {"change", "change of"}


@pytest.mark.parametrize(("looks", "share"), [((3,), 0.0), ((5,), 0.3), ((3, 4, 5), 0.2)])
def test_five_equal_arms_are_rarely_told_apart(looks, share):
    arms = {f"arm{i}": build_curve(2, 1, 0.35) for i in range(6)}
    truth = Truth(arms, growth=1.5, failing=lambda arm, size: share)
    assert count_claims(truth, looks, 100)["any"] <= 11  # at most 5 % are to be: 5, and 2.2 the standard deviation


def test_what_is_so_is_claimed():
    def fails(arm, size):
        return 0.05 if arm == "pre" else 0.03 + 0.31 * size

    truth = Truth(
        {"pre": build_curve(2, 1, 0.35), "post": lambda n: build_curve(2, 1, 0.35)(n) - 0.05 * (n / 1e6) ** 0.4},
        failing=fails,
    )
    claims = count_claims(truth, (10,), 40)
    assert claims["trend of failures"] > 30
    assert claims["failures"] > 20
    sure = Truth({"pre": build_curve(2, 1, 0.35), "post": build_curve(1.99, 1.2, 0.35)})
    assert count_claims(sure, (5,), 40)["trend"] > 30
