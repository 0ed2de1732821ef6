"""The course of fresh seeds: mean and range."""

import math

import pytest
from optuna.storages import InMemoryStorage
from run_table import put

from ablate.plots.marks import Band, Line
from ablate.reports import bands
from ablate.reports.bands import MOST_ARMS, collect_band, collect_bands, draw_bands
from ablate.sweeps.comparison import compare_record
from ablate.verdict.looks import Looks
from benchmarks.simulation.sweeps import simulate

from .hand_built import add_curves, build_record
from .test_sensitivity import RATES, sweep

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
POST = [2.05, 2.10, 2.06, 2.12, None]


def test_the_band_is_over_the_seeds_that_trained():
    record = add_curves(build_record({"pre": PRE, "post": POST}))
    band = collect_band(record, "post", compare_record(record)["post"])
    first, last = band.values()
    assert last == {"mean": pytest.approx((2.05 + 2.10 + 2.06 + 2.12) / 4), "low": 2.05, "high": 2.12}
    assert (first["low"], first["high"]) == pytest.approx((3.05, 3.12))


def test_a_band_has_the_seeds_up_to_the_last_look():
    """Before the first look there is none; a sweep that stops early has one without the seeds that it left out."""
    record = add_curves(build_record({"pre": PRE, "post": POST}, looks=None))
    assert collect_band(record, "pre", compare_record(record)["pre"]) == {}
    confirm = {"seeds": {"min": 3, "max": 12}, "effect": 0.02}
    record = add_curves(build_record({"pre": PRE, "post": POST}, confirm=confirm, looks=Looks((3, 4), 12)))
    compared = compare_record(record)["pre"]
    last = list(collect_band(record, "pre", compared).values())[-1]
    assert last["mean"] == pytest.approx(sum(PRE[:4]) / 4) == compared.estimate.mean


def test_the_figure_has_a_line_and_a_range_for_each_arm_and_a_dotted_line_for_each_seed_that_failed():
    record = add_curves(build_record({"pre": PRE, "post": POST}))
    (panel,) = draw_bands(record, compare_record(record)).panels
    lines = [mark for mark in panel.marks if isinstance(mark, Line)]
    assert [line.ys[-1] for line in lines if line.dash == "-"] == pytest.approx([sum(PRE) / 5, sum(POST[:4]) / 4])
    assert [line.ys for line in lines if line.dash == ":"] == [[10.0, 9.0]]
    _, post = (mark for mark in panel.marks if isinstance(mark, Band))
    assert (min(post.lows), max(post.highs)) == pytest.approx((2.05, 3.12))
    assert panel.y.limits[1] < 4  # those that failed do not set the scale


def test_the_axis_ends_a_little_above_the_loss_of_frequencies():
    record = put(add_curves(build_record({"pre": PRE, "post": POST})), trivial_loss=2.5)
    low, high = draw_bands(record, compare_record(record)).panels[0].y.limits
    assert high == pytest.approx(1.05 * 2.5)
    assert low < min(PRE)
    free = put(record, trivial_loss=5.5)
    assert 3.1 < draw_bands(free, compare_record(free)).panels[0].y.limits[1] < 3.5


def test_of_a_grid_with_too_many_points_each_arm_is_drawn_at_its_best(monkeypatch):
    """At the higher rate Mix-LN has the better mean, and a seed that diverges."""
    monkeypatch.setattr(bands, "MOST_ARMS", 3)

    def lose(arm, params, seed):
        high = params["optimizer.lr"] == RATES[1]
        return math.inf if (arm, high, seed % 5) == ("mix", True, 0) else (2.0 if high else 2.1) + seed / 1000

    record = simulate(sweep(warmups=()), lose, InMemoryStorage(), trivial_loss=3.3)
    drawn = collect_bands(add_curves(record), compare_record(record))
    rates = {record.spec.cells[cell].arm: record.spec.cells[cell].point["optimizer.lr"] for cell in drawn}
    assert rates == {"pre": RATES[1], "mix": RATES[0]}
    assert "at the point of the grid where fewest seeds failed" in bands.caption_bands(record, False)


def test_one_validation_is_no_course_and_many_arms_no_figure():
    record = build_record({"pre": PRE, "post": POST})
    assert collect_bands(record, compare_record(record)) == {}
    compared = compare_record(add_curves(record))
    many = {f"pre {k}": compared["pre"] for k in range(MOST_ARMS + 1)}
    runs = add_curves(record).fresh("pre")
    assert collect_bands(put(record, confirmed=dict.fromkeys(many, runs)), many) == {}
