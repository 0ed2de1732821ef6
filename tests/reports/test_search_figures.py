"""The figures of the search: the objective against each searched number, and against the amount of training."""

import math
from dataclasses import replace

import pytest
from run_table import by_arm, put

from ablate.plots.marks import Interval, Line, Points, Span
from ablate.reports.ranges import choose_view
from ablate.reports.report_data import draw_figures
from ablate.reports.search_figures import collect_points, draw_curves, draw_parameters
from ablate.reports.sensitivity import compute_hull
from ablate.reports.usage import UsageUnit
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.comparison import compare_record


def draw(record):
    """Name of a figure -> its panel."""
    return {figure.name: figure.panels[0] for figure in draw_parameters(record, compare_record(record))}


def pick(panel, kind, **values):
    marks = [mark for mark in panel.marks if isinstance(mark, kind)]
    return [mark for mark in marks if all(getattr(mark, name) == value for name, value in values.items())]


def test_there_is_a_figure_of_the_learning_rate_and_one_of_alpha(record):
    assert list(draw(record)) == ["learning_rate", "alpha"]


def test_every_finished_trial_is_a_point(record, expected_loss):
    points = collect_points(record, "optimizer.lr", {}, log=True)
    assert len(points) == 24
    pre = {p.x: p.y for p in points if p.trial.arm == "pre"}
    assert pre == {lr: expected_loss("pre", lr) for lr in pre}
    assert [(p.trial.arm, p.trial.number) for p in points if p.best] == [("pre", 3), ("post", 2), ("mix", 3)]
    pruned = next(p for p in points if p.trial.status == "pruned")
    assert pruned.y == list(record.search("mix")[5].curve.values())[-1]
    panel = draw(record)["learning_rate"]
    assert panel.x.log
    assert panel.x.limits[0] < 1e-4 < 1e-2 < panel.x.limits[1]
    diverged = [mark for mark in pick(panel, Points, hollow=True) if mark.colour != "black"]
    assert len(diverged) == 4
    assert all("diverged" in mark.titles[0] and mark.ys[0] > panel.y.within[1] for mark in diverged)
    assert len(pick(panel, Points, colour="black")) == 3  # the best of each arm has a ring
    assert len(pick(panel, Points, marker="x")) == 1


def test_lines_join_what_one_parameter_explains_and_hulls_the_rest(record):
    panel = draw(record)["learning_rate"]
    _, post = pick(panel, Line, dash="-")
    assert list(post.xs) == [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3]  # the diverged ones are not joined
    (mix,) = pick(panel, Line, dash="--")
    assert (pytest.approx(8e-4), 1.712) in list(zip(mix.xs, mix.ys, strict=True))
    assert max(mix.ys) < 4


def test_a_terrible_trial_does_not_set_the_scale(record):
    low, high = draw(record)["learning_rate"].y.within
    assert low < 1.712
    assert high < 2.2


def test_alpha_has_the_other_arms_as_lines_and_the_learning_rate_as_colour(record):
    panel = draw(record)["alpha"]
    assert not panel.x.log
    assert panel.bar.log
    assert [line.low for line in pick(panel, Span, dash=":")] == [1.735, 1.82]
    shades = {mark.colour for mark in pick(panel, Points, edge="white")}
    assert len(shades) == len(pick(panel, Points, edge="white"))


def test_fresh_seeds_stand_over_the_search_at_the_chosen_rate(full):
    compared, panel = compare_record(full), draw(full)["learning_rate"]
    for mark, c in zip(pick(panel, Interval), compared.values(), strict=True):
        assert (mark.x, mark.y) == (c.params["optimizer.lr"], c.estimate.mean)
        assert panel.y.limits[0] < mark.y < panel.y.limits[1]


def test_arms_that_differ_by_a_fixed_number_stand_at_it(writer):
    arms = {"pre": {"norm.kind": "pre"}, **{f"mix-{a}": {"norm": {"kind": "mix", "alpha": a}} for a in (0.25, 0.5)}}
    sweep = writer({"name": "fixed", "arms": arms, "search": {"optimizer.lr": [1e-3, 2e-3]}})
    for i, arm in enumerate(arms):
        sweep.add(arm, {"optimizer.lr": 1e-3}, 1.8 + i / 10)
    panel = draw(read_sweep("fixed"))["alpha"]
    assert [mark.xs for mark in pick(panel, Points, edge="white")] == [[0.25], [0.5]]
    assert [line.low for line in pick(panel, Span)] == [1.8]


def test_words_and_switches_have_no_figure_other_numbers_do(spec, writer):
    searched = {"optimizer.weight_decay": {"low": 0.0, "high": 0.2}, "norm.layer": ["rmsnorm", "layernorm"]}
    sweep = writer({**spec, "search": searched})
    for decay in (0.0, 0.1):
        sweep.add("pre", {"optimizer.weight_decay": decay, "norm.layer": "rmsnorm"}, 1.9 - decay)
    panels = draw(read_sweep("demo"))
    assert list(panels) == ["weight_decay"]
    assert panels["weight_decay"].bar is None


def test_curves_are_without_what_is_not_finite(record):
    (panel,) = draw_curves(record).panels
    best = pick(panel, Line, width=2)
    assert len(best) == 3
    assert {*zip(best[2].xs, best[2].ys, strict=True)} == {*record.search("mix")[3].curve.items()}
    assert all(map(math.isfinite, (y for line in pick(panel, Line) for y in line.ys)))
    low, high = panel.y.within
    assert 1.5 < low < 1.712
    assert 2 < high < 3.4


def test_curves_are_in_tokens_where_all_trials_say_how_many(full):
    (panel,) = draw_curves(full).panels
    assert pick(panel, Line, width=2)[0].xs == [1024 * step for step in range(20, 201, 20)]
    pre = [replace(full.search("pre")[0], items_per_update=2048), *full.search("pre")[1:]]
    mixed = put(full, trials={**by_arm(full), "pre": pre})
    assert UsageUnit.of(mixed).noun == "tokens"
    unknown = put(full, trials={**by_arm(full), "pre": [*pre[:-1], replace(pre[-1], items_per_update=1)]})
    assert UsageUnit.of(unknown).noun == "updates"
    assert pick(draw_curves(unknown).panels[0], Line, width=2)[0].xs == list(range(20, 201, 20))


@pytest.mark.parametrize(
    ("values", "sign", "expected"),
    [
        ([1.7, 1.75, 1.8, 1.85, 9.0], 1, (1.7, 1.85)),
        ([0.9, 0.89, 0.88, 0.87, 0.1], -1, (0.87, 0.9)),
        ([1.7, 2.0, 2.5, 3.0], 1, (1.7, 3.0)),
        ([1.7], 1, (1.7, 1.7)),
        ([1.7, 1.7, 1.7, 1.7, 5.0], 1, (1.7, 5.0)),
    ],
)
def test_the_view_leaves_out_outliers_on_the_bad_side(values, sign, expected):
    assert choose_view(values, sign) == expected


def test_the_hull_is_under_every_point_or_over_it():
    points = [(0.0, 2.0), (1.0, 1.95), (2.0, 1.0), (3.0, 1.8), (4.0, 1.5)]
    assert compute_hull(points, 1, log=False) == [(0.0, 2.0), (2.0, 1.0), (4.0, 1.5)]
    assert compute_hull(points, -1, log=False) == [(0.0, 2.0), (1.0, 1.95), (3.0, 1.8), (4.0, 1.5)]
    curve = compute_hull([(10.0**i, (i - 1) ** 2) for i in range(3)], 1, log=True)
    assert [x for x, _ in curve] == pytest.approx([1, 10, 100])


def test_of_a_single_trial_there_is_its_curve_and_no_figure_of_one_point(spec, writer):
    writer(spec).add("mix", {"optimizer.lr": 1e-3, "norm.alpha": 0.5}, 1.8, curve={200: 1.8})
    assert [figure.name for figure in draw_figures(read_sweep("demo"))] == ["curves"]


def test_a_sweep_of_only_bad_trials_can_be_drawn(spec, writer):
    sweep = writer(spec)
    sweep.add("pre", {"optimizer.lr": 1e-3}, status="diverged", curve={20: 3.0, 40: math.nan})
    sweep.add("pre", {"optimizer.lr": 2e-3}, status="pruned", curve={20: 3.0, 40: 2.5})
    sweep.add("post", {"optimizer.lr": 2e-3}, status="diverged", curve={20: math.inf})
    record = read_sweep("demo")
    assert list(draw(record)) == ["learning_rate"]
    assert draw_curves(record)
