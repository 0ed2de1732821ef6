"""The figures of the verdict: every seed that trained is on them, and what decides is beside what is claimed."""

import math

import pytest
from optuna.storages import InMemoryStorage

from ablate.plots.marks import Interval, Points, Span, Text
from ablate.reports.ranges import choose_range, find_ends
from ablate.reports.verdict_figures import draw_grid, draw_verdict, find_axis
from ablate.sweeps.comparison import compare_record
from benchmarks.simulation.sweeps import simulate

from .hand_built import STUCK, build_record
from .test_sensitivity import RATES, WARMUPS, bend, sweep

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]
WIDE = [0.02, 0.6, 0.1]  # the interval of its mean reaches below 0


def draw(record):
    return draw_verdict(record, compare_record(record))


def pick(panel, kind):
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def list_texts(panel):
    return [mark.text for mark in pick(panel, Text)]


def test_there_is_a_row_for_each_arm(full):
    values, _, shares = draw(full).panels
    assert [label.partition("\n")[0] for label in values.y.ticks.values()] == ["pre", "post", "mix"]
    (baseline,) = pick(values, Span)
    assert (baseline.low, baseline.high) == pytest.approx((2.126, 2.126))
    assert "9.000 ◇ →" in list_texts(values)
    assert values.x.limits[1] < 4
    assert list_texts(shares) == ["0 of 5", "2 of 5", "0 of 5"]


def test_seeds_means_and_intervals_are_those_of_the_comparison():
    record = build_record({"pre": PRE, "post": BETTER}, confirm={"seeds": 5, "effect": 0.05})
    compared, (values, differences, _) = compare_record(record), draw(record).panels
    assert [points.xs for points in pick(values, Points)] == [PRE, BETTER]
    means = [c.estimate for c in compared.values()]
    assert [(mark.x, mark.ends) for mark in pick(values, Interval)] == [(e.mean, e.interval) for e in means]
    (difference,) = pick(differences, Interval)
    assert difference.x == pytest.approx(-0.046)
    assert difference.title.startswith("post: -0.0460 ± ")
    band, zero = pick(differences, Span)
    assert ((band.low, band.high), (zero.low, zero.high)) == ((-0.05, 0.05), (0, 0))


def test_failures_have_a_panel_of_their_own():
    values, _, shares = draw(build_record({"pre": PRE, "post": [2.0, STUCK, None, 2.05, 2.01]})).panels
    assert len(pick(values, Points)[1].xs) == 3
    _, share = pick(shares, Interval)
    assert share.x == 40
    assert "2 of 5 seeds (1 diverged, 1 stuck" in share.title


def test_an_interval_ends_where_the_metric_does_and_encloses_its_mean():
    record = build_record({"pre": [0.5, 0.52, 0.51], "post": WIDE})
    own = compare_record(record)["post"].estimate
    assert own.interval[0] < 0
    values, differences, _ = draw(record).panels
    assert pick(values, Interval)[1].ends == (0, own.interval[1]) == find_ends(own, (0.0, math.inf))
    assert "[0, " in pick(values, Interval)[1].title
    assert values.x.limits[0] > -0.2
    assert differences.x.limits[0] < compare_record(record)["post"].difference.interval[0] < 0  # it may be below 0


def test_where_nothing_trained_there_is_still_a_figure_and_without_seeds_there_is_none():
    values, shares = draw(build_record({"pre": [None] * 3, "post": [None] * 3})).panels
    assert list_texts(values) == ["no seed trained"] * 2
    assert list_texts(shares) == ["3 of 3"] * 2
    assert draw(build_record({"pre": ["running"], "post": ["running"]}, looks=None)) is None


def test_an_arm_without_a_difference_says_why():
    values = {"pre": PRE, "post": [], "mix": BETTER}
    _, differences, _ = draw(build_record(values, promised={"post": None})).panels
    assert list_texts(differences) == ["no seed was run"]
    _, differences, _ = draw(build_record({**values, "post": [None] * 5})).panels
    assert list_texts(differences) == ["no seed on which both trained"]


def test_the_verdict_is_beside_its_interval():
    values = {"pre": PRE, "post": [None] * 5, "mix": BETTER}
    record = build_record(values, confirm={"seeds": 5, "effect": 0.02}, promised={"post": 1.5})
    figure = draw(record)
    assert list(figure.panels[0].y.ticks.values()) == ["pre\nbaseline", "post\nfails on all seeds", "mix\nbetter"]
    assert "joint error of 5 % over 2 comparisons together" in figure.caption
    assert "Grey: differences smaller than 0.02" in figure.caption


def test_a_difference_that_was_not_challenged_is_inconclusive():
    figure = draw(build_record({"pre": PRE, "post": BETTER}, selected={"pre": {0: [2.1, 2.12]}}))
    assert list(figure.panels[0].y.ticks.values())[1] == "post\ninconclusive,\nnot yet challenged"
    (own,) = pick(figure.panels[1], Interval)
    assert own.ends[1] < 0


def test_two_seeds_have_no_interval():
    figure = draw(build_record({"pre": PRE[:2], "post": BETTER[:2]}))
    assert list(figure.panels[0].y.ticks.values())[1] == "post\nno verdict yet"
    assert [mark.ends for mark in pick(figure.panels[1], Interval)] == [None]


def test_an_axis_stays_near_the_data():
    low, high = choose_range([1.0, 1.1, 1.2], [(0.9, 1.3), (0.95, 1.25), (-30.0, 40.0)])
    assert 0.2 < low < 0.9
    assert 1.3 < high < 2.0
    assert choose_range([1.0, 1.1], [(0.0, 2.1)])[0] < 0  # the only interval is shown whole
    low, high = choose_range([2.0])
    assert low < 2.0 < high
    assert choose_range([2.0, 3.0]) == pytest.approx((1.94, 3.06))


# ---------------------------------------------------------------------------------------------------- a grid


def run(**parts):
    return simulate(sweep(**parts), bend, InMemoryStorage(), trivial_loss=3.3)


def test_a_second_parameter_gives_columns_with_its_own_cells():
    record = run()
    compared = compare_record(record)
    panels = draw_grid(record, compared).panels
    assert [panel.title for panel in panels[:2]] == ["warmup_fraction = 0", "warmup_fraction = 0.1"]
    assert len(panels) == 2 * len(WARMUPS)
    for panel, warmup in zip(panels, WARMUPS, strict=False):
        means = {mark.y for mark in pick(panel, Interval)}
        cells = [name for name, cell in record.spec.cells.items() if cell.point["schedule.warmup_fraction"] == warmup]
        assert len(cells) == 2 * len(RATES)
        assert {compared[name].estimate.mean for name in cells} == means


def test_one_parameter_gives_one_column_and_too_many_values_no_figure():
    record = run(warmups=())
    assert len(draw_grid(record, compare_record(record)).panels) == 2
    assert find_axis(run(warmups=[0.0, 0.01, 0.02, 0.05, 0.1])) is None
