"""The course of fresh seeds: mean and range."""

from dataclasses import replace

import pytest

from ablate.reports.bands import MOST_ARMS, collect_band, collect_bands, draw_bands
from ablate.sweeps.comparison import compare_record

from .hand_built import add_curves, build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
POST = [2.05, 2.10, 2.06, 2.12, None]


def test_the_band_is_over_the_seeds_that_trained():
    record = add_curves(build_record({"pre": PRE, "post": POST}))
    band = collect_band(record, "post", compare_record(record)["post"])
    first, last = band.values()
    assert last == {"mean": pytest.approx((2.05 + 2.10 + 2.06 + 2.12) / 4), "low": 2.05, "high": 2.12}
    assert (first["low"], first["high"]) == pytest.approx((3.05, 3.12))


def test_there_is_no_band_while_planned_seeds_run():
    record = add_curves(build_record({"pre": PRE, "post": POST}))
    assert collect_band(record, "pre", replace(compare_record(record)["pre"], planned=6)) == {}


def test_the_figure_has_a_line_and_a_range_for_each_arm():
    record = add_curves(build_record({"pre": PRE, "post": POST}))
    bands = collect_bands(record, compare_record(record))
    assert list(bands) == ["pre", "post"]
    (axes,) = draw_bands(record, bands).axes
    lines = {line.get_color(): line for line in axes.lines}
    assert len(lines) == 2
    assert [line.get_ydata()[-1] for line in axes.lines] == pytest.approx([sum(PRE) / 5, sum(POST[:4]) / 4])
    assert len(axes.collections) == 2
    ranges = axes.collections[1].get_paths()[0].vertices[:, 1]
    assert (min(ranges), max(ranges)) == pytest.approx((2.05, 3.12))


def test_one_validation_is_no_course_and_many_arms_no_figure():
    record = build_record({"pre": PRE, "post": POST})
    assert collect_bands(record, compare_record(record)) == {}
    compared = compare_record(add_curves(record))
    many = {f"pre {k}": compared["pre"] for k in range(MOST_ARMS + 1)}
    runs = add_curves(record).confirmed["pre"]
    assert collect_bands(replace(record, confirmed=dict.fromkeys(many, runs)), many) == {}
