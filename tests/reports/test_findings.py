"""Sentences and tables: what is claimed, with how many trials, and what is not."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from ledger.conftest import RATES, run_in_memory
from rich.console import Console
from run_table import by_arm, join, put

from ablate.config.formatting import format_count, format_duration, format_number, shorten_paths
from ablate.reports import findings
from ablate.reports.report import Report, assemble, report
from ablate.reports.terminal import render, to_text
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, SEARCH

from .hand_built import TRIVIAL, build_record

ONE_ARM = {"name": "one", "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}}}


def test_the_verdict_lists_the_arms_with_n_and_names_no_winner(record: SweepRecord) -> None:
    text = findings.describe_search(record)
    assert text.startswith("Best of 8 trials: mix 1.712, pre 1.735, post 1.820 (val/loss, lower is better).")
    assert "on one seed, so it is optimistic: such differences between arms are not evidence" in text
    assert "before claiming a winner" in text
    assert not re.search(r"\bwins|\bbetter than|outperform|significant|beats", text)


def test_unequal_numbers_of_trials_stand_beside_each_value(spec: Any, writer: Any) -> None:
    sweep = writer(spec)
    for lr, value in ((1e-3, 1.8), (2e-3, 1.9)):
        sweep.add("pre", {"optimizer.lr": lr}, value)
    sweep.add("post", {"optimizer.lr": 1e-3}, 1.85)
    record = read_sweep("demo")
    text = findings.describe_search(record)
    assert "Best of each arm: pre 1.800 (of 2 trials), post 1.850 (of 1 trial)" in text
    assert "No trial of mix has completed." in text
    assert any(
        "unequal numbers of finished trials (pre 2, post 1 and mix 0)" in n for n in findings.list_cautions(record)
    )


def test_an_arm_whose_search_is_over_and_never_completed_could_not_be_trained(spec: Any, writer: Any) -> None:
    sweep = writer({**spec, "budget": {"trials": 1}})
    sweep.add("pre", {"optimizer.lr": 1e-3}, 1.8)
    sweep.add("post", {"optimizer.lr": 1e-3}, status="diverged")
    text = findings.describe_search(read_sweep("demo"))
    assert "No trial of post and mix has completed. Within the budget post could not be trained." in text


def test_where_more_is_better_the_highest_comes_first(spec: Any, writer: Any) -> None:
    objective = {"metric": "val/accuracy", "direction": "maximize"}
    sweep = writer({**spec, "experiment": {"model": "vit"}, "objective": objective})
    for arm, values in {"pre": (0.9, 0.7), "post": (0.95, 0.2)}.items():
        for lr, value in zip((1e-3, 2e-3), values, strict=True):
            sweep.add(arm, {"optimizer.lr": lr}, value)
    sweep.add("post", {"optimizer.lr": 9e-3}, status="diverged")
    record = read_sweep("demo")
    assert (
        "post 0.950 (of 3 trials), pre 0.900 (of 2 trials) (val/accuracy, higher is better)"
        in findings.describe_search(record)
    )


def test_a_sweep_without_arms_compares_nothing(writer: Any) -> None:
    writer(ONE_ARM).add("all", {"optimizer.lr": 1e-3}, 1.9)
    text = findings.describe_search(read_sweep("one"))
    assert text.startswith("Best of 1 trial: all 1.900")
    assert "differences" not in text


@pytest.mark.parametrize(
    ("items", "metric", "told"),
    [
        (36, "val/accuracy", "only 36 images (one image changes val/accuracy by 0.028): differences"),
        (50, "mean(val/accuracy, val/accuracy_top5)", "changes mean(val/accuracy, val/accuracy_top5) by 0.01)"),
        (99, "val/loss", "The validation set has only 99 images: differences between settings may be noise"),
        (1, "val/loss", "only 1 image: "),
        (100, "val/accuracy", ""),
        (None, "val/accuracy", ""),
    ],
)
def test_a_small_validation_set_is_pointed_out(
    spec: Any, writer: Any, items: int | None, metric: str, told: str
) -> None:
    direction = "minimize" if metric == "val/loss" else "maximize"
    sweep = writer({**spec, "experiment": {"model": "vit"}, "objective": {"metric": metric, "direction": direction}})
    if items is not None:
        sweep.studies["pre"].set_user_attr("validation_items", items)
    notes = [note for note in findings.list_cautions(read_sweep("demo")) if "validation set" in note]
    assert len(notes) == bool(told)
    assert told in " ".join(notes)


def test_of_language_the_small_validation_set_is_counted_in_sequences(record: SweepRecord) -> None:
    notes = findings.list_cautions(replace(record, validation_items=12))
    assert any("The validation set has only 12 sequences: " in note for note in notes)


# ---------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_hold_every_number_and_stay_within_the_terminal(made: Report, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    with console.capture() as capture:
        render(made.document, console)
    text = re.sub(r"\x1b\[[0-9;]*m", "", capture.get())
    tables, _, rest = text.partition("Files")
    assert all(len(line.rstrip()) <= width for line in tables.splitlines())
    for trial in (t for trials in by_arm(made.record).values() for t in trials):
        if trial.value is not None:
            assert format_number(trial.value) in tables
    assert "0/3/0" in tables or width > 80
    assert "post 5, 6 and 7 diverged: validation loss nan at update 100" in tables
    assert "mix 8 failed: RuntimeError: CUDA out of memory" in tables
    assert "ablate ui" in rest
    assert "…" not in text


def test_in_a_notebook_the_plain_table_is_returned_and_not_displayed(
    made: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, displayed = to_text(made.document), []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *content: displayed.append(content))
    assert to_text(made.document) == outside
    assert not displayed


def test_the_plain_table_has_no_colours_and_lists_trials_best_first(made: Report) -> None:
    text = to_text(made.document)
    assert "\x1b" not in text
    pre = [line.split()[1] for line in text.partition("All 26 trials")[2].splitlines() if line.startswith(" pre ")]
    assert pre[:8] == ["3", "2", "4", "1", "5", "0", "6", "7"]


def test_brackets_in_a_reason_are_text(spec: Any, writer: Any) -> None:
    writer(spec).add("pre", {"optimizer.lr": 1e-3}, status="failed", reason="KeyError: [red]x[/red]")
    assert "[red]x[/red]" in to_text(report("demo", log=False).document)


def test_words() -> None:
    assert [format_number(v) for v in (None, 1.71234, 0.00012345, 12345.678, 3)] == [
        "-",
        "1.712",
        "0.0001234",
        "12346",
        "3",
    ]
    assert [format_duration(s) for s in (None, 2.04, 61.5, 600, 90_000)] == ["-", "2.0 s", "62 s", "10.0 min", "25.0 h"]
    assert shorten_paths(["norm.alpha", "optimizer.lr"]) == {"norm.alpha": "alpha", "optimizer.lr": "lr"}
    assert [format_count(v) for v in (0, 999, 26_214, 999_900, 1.31072e9)] == ["0", "999", "26.2 k", "1 M", "1.31 G"]
    assert set(shorten_paths(["a.kind", "b.kind"]).values()) == {"a.kind", "b.kind"}


def test_a_trial_that_ended_stuck_is_told_so(tmp_path):
    record = build_record({"pre": [2.0] * 3, "post": [2.0] * 3}, promised={"post": TRIVIAL})
    text = " ".join(to_text(assemble(record, tmp_path, draw=False).document).split())
    assert "completed (stuck)" in text
    assert "1 completed trial ended stuck." in text
    assert "No trial was pruned" not in text


def diverge(trials: Any, step: int) -> list[Any]:
    return [replace(trial, status="diverged", value=None, step=step) for trial in trials]


@pytest.mark.parametrize(("step", "told"), [(10, True), (200, False)])
def test_an_arm_that_diverges_at_once_at_every_setting_may_have_a_fault(step: int, told: bool) -> None:
    record = run_in_memory("grid")  # three rates, four seeds
    fallen = {
        arm: diverge(runs, step) if arm.startswith("post") else runs for arm, runs in by_arm(record, FRESH).items()
    }
    notes = findings.list_cautions(put(record, confirmed=fallen))
    text = "All 12 runs of post diverged within 10 updates, at all 3 settings: that may be a fault and no outcome."
    assert any(note.startswith(text) for note in notes) == told


def test_runs_on_further_seeds_are_no_further_settings() -> None:
    record = run_in_memory("searched")
    tried = diverge(record.search("post"), 1)
    tried = [replace(trial, params={"optimizer.lr": rate}) for trial, rate in zip(tried, RATES, strict=True)]
    tested = [replace(run, params=tried[0].params) for run in diverge(record.fresh("post"), 1)]
    fresh = {**by_arm(record, FRESH), "post": tested}
    for count, told in ((2, False), (3, True)):
        stages = {SEARCH: {**by_arm(record), "post": tried[:count]}, FRESH: fresh}
        fallen = replace(record, runs=join(stages, record.trivial_loss), chosen={})
        notes = findings.list_cautions(fallen)
        assert any("at all 3 settings: that may be a fault" in note for note in notes) == told


def test_an_arm_that_trains_at_one_rate_has_no_such_fault() -> None:
    record = run_in_memory("grid")
    assert not any("may be a fault" in note for note in findings.list_cautions(record))
    fallen = {
        arm: diverge(runs, 1) if arm.startswith("post") and arm != "post lr=0.001" else runs
        for arm, runs in by_arm(record, FRESH).items()
    }
    assert not any("may be a fault" in note for note in findings.list_cautions(put(record, confirmed=fallen)))
