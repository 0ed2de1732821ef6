"""The numbers behind the figures."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_table import by_arm, put

from ablate.reports.figure_data import (
    Panel,
    choose_course_view,
    choose_view,
    collect_courses,
    collect_panels,
    compute_hull,
)
from ablate.reports.figures import draw_figures
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.storage import read_sweep


def found(record: SweepRecord) -> dict[str, Panel]:
    return {panel.file: panel for panel in collect_panels(record)}


def test_there_is_a_panel_for_the_learning_rate_and_one_for_alpha(record: SweepRecord) -> None:
    assert list(found(record)) == ["learning_rate", "alpha"]


def test_the_learning_rate_panel_holds_every_finished_trial(record: SweepRecord, expected_loss: Any) -> None:
    panel = found(record)["learning_rate"]
    assert panel.log
    assert panel.extent == (1e-4, 1e-2)
    assert len(panel.points) == 24
    pre = {p.x: p.y for p in panel.points if p.arm == "pre"}
    assert pre == {lr: expected_loss("pre", lr) for lr in pre}
    assert [(p.arm, p.number) for p in panel.points if p.best] == [("pre", 3), ("post", 2), ("mix", 3)]
    assert [p.number for p in panel.points if p.arm == "post" and p.y is None] == [5, 6, 7]
    pruned = next(p for p in panel.points if p.status == "pruned")
    assert pruned.y == list(record.search("mix")[5].curve.values())[-1]


def test_lines_join_what_one_parameter_explains_and_hulls_the_rest(record: SweepRecord) -> None:
    panel = found(record)["learning_rate"]
    assert set(panel.lines) == {"pre", "post"}
    assert [x for x, _ in panel.lines["post"]] == [1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3]  # the diverged ones are not joined
    assert set(panel.envelopes) == {"mix"}
    assert (pytest.approx(8e-4), 1.712) in panel.envelopes["mix"]
    assert all(y < 4 for _, y in panel.envelopes["mix"])


def test_a_terrible_trial_does_not_set_the_scale(record: SweepRecord) -> None:
    low, high = found(record)["learning_rate"].view
    assert low == 1.712
    assert high < 2.2


def test_the_alpha_panel_shows_the_other_arms_as_lines_and_the_learning_rate_as_colour(record: SweepRecord) -> None:
    panel = found(record)["alpha"]
    assert not panel.log
    assert panel.shaded
    assert panel.extent == (0.0, 1.0)
    assert panel.references == {"pre": 1.735, "post": 1.82}
    assert {p.arm for p in panel.points} == {"mix"}
    assert {(p.x, p.lr) for p in panel.points if p.best} == {(0.25, 8e-4)}


def test_arms_that_differ_by_a_fixed_number_stand_at_it(writer: Any) -> None:
    arms = {"pre": {"norm.kind": "pre"}, **{f"mix-{a}": {"norm": {"kind": "mix", "alpha": a}} for a in (0.25, 0.5)}}
    sweep = writer({"name": "fixed", "arms": arms, "search": {"optimizer.lr": [1e-3, 2e-3]}})
    for i, arm in enumerate(arms):
        sweep.add(arm, {"optimizer.lr": 1e-3}, 1.8 + i / 10)
    panel = found(read_sweep("fixed"))["alpha"]
    assert {p.arm: p.x for p in panel.points} == {"mix-0.25": 0.25, "mix-0.5": 0.5}
    assert panel.references == {"pre": 1.8}
    assert not panel.log


def test_words_and_switches_have_no_panel_other_numbers_do(spec: Any, writer: Any) -> None:
    searched = {"optimizer.weight_decay": {"low": 0.0, "high": 0.2}, "norm.layer": ["rmsnorm", "layernorm"]}
    sweep = writer({**spec, "search": searched})
    for decay in (0.0, 0.1):
        sweep.add("pre", {"optimizer.weight_decay": decay, "norm.layer": "rmsnorm"}, 1.9 - decay)
    panels = found(read_sweep("demo"))
    assert list(panels) == ["weight_decay"]
    assert not panels["weight_decay"].shaded


def test_the_courses_are_the_curves_without_what_is_not_finite(record: SweepRecord) -> None:
    lines = collect_courses(record)
    assert sum(line.best for line in lines) == 3
    diverged = next(line for line in lines if (line.arm, line.number) == ("post", 5))
    assert diverged.xs == [20, 40, 60, 80]
    best = next(line for line in lines if (line.arm, line.best) == ("mix", True))
    assert dict(zip(best.xs, best.ys, strict=True)) == record.search("mix")[3].curve
    low, high = choose_course_view(lines, 1)
    assert low == pytest.approx(1.712)
    assert 2 < high < 3.2


def test_courses_are_told_in_tokens_where_all_trials_say_how_many(full: SweepRecord) -> None:
    best = next(line for line in collect_courses(full) if line.best)
    assert best.xs == [1024 * step for step in range(20, 201, 20)]
    pre = [replace(full.search("pre")[0], items_per_update=2048), *full.search("pre")[1:]]
    mixed = put(full, trials={**by_arm(full), "pre": pre})
    assert UsageUnit.of(mixed).noun == "tokens"
    unknown = put(full, trials={**by_arm(full), "pre": [*pre[:-1], replace(pre[-1], items_per_update=1)]})
    assert UsageUnit.of(unknown).noun == "updates"
    assert collect_courses(unknown)[0].xs == list(range(20, 201, 20))


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
def test_the_view_leaves_out_outliers_on_the_bad_side(values: list[float], sign: int, expected: Any) -> None:
    assert choose_view(values, sign) == expected


def test_the_hull_is_under_every_point_or_over_it() -> None:
    points = [(0.0, 2.0), (1.0, 1.95), (2.0, 1.0), (3.0, 1.8), (4.0, 1.5)]
    assert compute_hull(points, 1, log=False) == [(0.0, 2.0), (2.0, 1.0), (4.0, 1.5)]
    assert compute_hull(points, -1, log=False) == [(0.0, 2.0), (1.0, 1.95), (3.0, 1.8), (4.0, 1.5)]
    assert [x for x, _ in compute_hull([(10.0**i, (i - 1) ** 2) for i in range(3)], 1, log=True)] == pytest.approx(
        [1, 10, 100]
    )


def test_of_a_single_trial_there_is_its_curve_and_no_figure_of_one_point(
    spec: Any, writer: Any, tmp_path: Path
) -> None:
    writer(spec).add("mix", {"optimizer.lr": 1e-3, "norm.alpha": 0.5}, 1.8, curve={200: 1.8})
    assert [path.name for path in draw_figures(read_sweep("demo"), tmp_path)] == ["curves.png"]


def test_a_sweep_of_only_bad_trials_can_be_drawn(spec: Any, writer: Any, tmp_path: Path) -> None:
    sweep = writer(spec)
    sweep.add("pre", {"optimizer.lr": 1e-3}, status="diverged", curve={20: 3.0, 40: math.nan})
    sweep.add("pre", {"optimizer.lr": 2e-3}, status="pruned", curve={20: 3.0, 40: 2.5})
    sweep.add("post", {"optimizer.lr": 2e-3}, status="diverged", curve={20: math.inf})
    assert [path.name for path in draw_figures(read_sweep("demo"), tmp_path)] == ["learning_rate.png", "curves.png"]
