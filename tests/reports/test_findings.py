"""Sentences, cautions and tables: what is claimed, with how many trials, and what is not."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from bundles.conftest import RATES, run_in_memory
from rich.console import Console
from run_table import by_arm, join, put

from ablate.config.formatting import format_count, format_duration, format_number, shorten_paths
from ablate.reports import findings
from ablate.reports.findings import describe_luck, describe_open_verdict, list_cautions
from ablate.reports.report import Report, assemble, report
from ablate.reports.terminal import render, to_text
from ablate.reports.verdict_sections import describe_verdict
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, SEARCH

from .hand_built import TRIVIAL, build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]
FURTHER = {3e-4: [2.4, 2.5, 2.5], 4e-3: [2.3, 2.4, 2.4], 1e-2: [2.6, 2.7, 2.7]}
"""Learning rate -> values of an arm that is best in between."""
UP_TO_12 = {"seeds": {"min": 3, "max": 12}, "effect": 0.01}


def test_a_finished_sweep_waits_for_nothing():
    assert list(describe_open_verdict(build_record({"pre": PRE, "post": BETTER}))) == []
    assert list_cautions(build_record({"pre": PRE, "post": BETTER})) == []


def test_missing_selection_runs_are_counted():
    record = build_record({"pre": PRE, "post": BETTER}, selected={"pre": {0: [2.1], 1: [2.2, 2.3]}, "post": {0: []}})
    waiting = put(record, chosen={}, confirmed={})
    notes = list(describe_open_verdict(waiting))
    assert notes[0] == "The selection is not finished: pre has 3 of 4 runs, so its settings are not chosen yet."
    assert notes[1] == "The confirmation is not finished: of 5 fresh seeds pre 0 and post 0 are done."


@pytest.mark.parametrize(
    ("values", "confirm", "told"),
    [
        ({"pre": PRE, "post": BETTER[:3]}, {"seeds": 5}, "of 5 fresh seeds pre 5 and post 3 are done."),
        ({"pre": PRE, "post": PRE[::-1]}, UP_TO_12, "of at most 12 fresh seeds pre 5 and post 5 are done."),
        ({"pre": PRE, "post": [None] * 5}, UP_TO_12, ""),  # decided: no more are run
        ({"pre": PRE, "post": []}, {"seeds": 5}, "of 5 fresh seeds pre 5 and post 0 are done."),
        ({"pre": PRE}, {"seeds": 6}, "of 6 fresh seeds pre 5 are done."),
        ({"pre": PRE}, {"seeds": 0}, ""),
    ],
)
def test_missing_seeds_are_counted(values, confirm, told):
    looks = "one" if len({*map(len, values.values())}) == 1 else None
    notes = " ".join(describe_open_verdict(build_record(values, confirm=confirm, looks=looks)))
    assert notes == (f"The confirmation is not finished: {told}" if told else "")


def test_no_seeds_are_missed_of_an_arm_that_could_not_be_trained():
    for lost, fresh in (("post", {"pre": PRE, "post": []}), ("pre", {"pre": [], "post": PRE})):
        assert list(describe_open_verdict(build_record(fresh, promised={lost: None}, looks=None))) == []


def test_a_seed_that_was_deleted_after_a_look_is_missed():
    """It is not said that the looks were as planned."""
    record = build_record({"pre": PRE, "post": BETTER})
    assert "every look: 1 look at 5 seeds, as planned." in describe_verdict(record, compare_record(record))
    confirmed = {"pre": record.fresh("pre"), "post": record.fresh("post")[:1] + record.fresh("post")[2:]}
    left = put(record, confirmed=confirmed)
    text = describe_verdict(left, compare_record(left))
    assert "every look: 1 look at 5 seeds, of which 4 are left (5 were planned)." in text
    assert "Fresh seeds that were looked at are missing in the storage: post 9. " in " ".join(
        describe_open_verdict(left)
    )


def test_an_arm_that_may_still_try_other_settings_is_named():
    selected = {"pre": {0: [2.1, 2.12]}}
    record = build_record({"pre": PRE, "post": BETTER}, selected=selected)
    assert list(describe_open_verdict(record)) == [
        "pre may still try other settings. Until then nothing is claimed of post."
    ]
    tries = {"pre": {3e-3: [2.0, 2.13, 2.13]}}
    ended = build_record({"pre": PRE, "post": BETTER}, selected=selected, tries=tries, challenge={"trials": 1})
    assert list(describe_open_verdict(ended)) == []


def test_crashes_are_told_from_failures():
    record = build_record(
        {"pre": PRE, "post": [*BETTER, "failed", "failed"], "mix": [None] * 5},
        selected={"pre": {0: [2.1, "failed"]}},
        confirm={"seeds": 5},
    )
    assert [note for note in describe_open_verdict(record) if "crashed" in note] == [
        "1 selection run of pre crashed, which is not an outcome: `ablate sweep` retries it.",
        "2 fresh seeds of post crashed, which is not an outcome: `ablate sweep` retries them.",
    ]


@pytest.mark.parametrize(
    ("values", "rates", "told"),
    [
        ([None] * 5, {"post": 1e-2}, "Their verdict (fails on all seeds) holds only for these settings"),
        ([None] * 5, {}, ""),
        (PRE[::-1], {"post": 1e-2}, ""),  # undecided: nothing is claimed
        (BETTER, {"post": 1e-2}, "Their verdict (better) holds only for these settings"),
    ],
)
def test_claims_that_were_not_challenged_are_told(values, rates, told):
    notes = list(describe_luck(build_record({"pre": PRE, "post": values}, rates=rates)))
    assert len(notes) == bool(told)
    assert told in " ".join(notes)
    assert all("at different settings (optimizer.lr 0.01 and 0.001)" in note for note in notes)


def test_an_equivalence_at_different_settings_holds_there_unless_both_were_challenged():
    values = {"pre": PRE, "post": [2.11, 2.13, 2.115, 2.155, 2.125]}
    more = {"rates": {"post": 2e-3}, "confirm": {"seeds": 5, "effect": 0.05}}
    (note,) = describe_luck(build_record(values, **more))
    assert "(equivalent)" in note
    worse = {10**-0.5: [2.1, 2.199, 2.221], 10: [2.4, 2.502, 2.519], 10**1.5: [2.901, 3.0, 3.02]}  # a parabola
    tries = {arm: {own * rate: there for rate, there in worse.items()} for arm, own in (("pre", 1e-3), ("post", 2e-3))}
    selected = {arm: {0: [2.10, 2.12]} for arm in values}
    record = build_record(values, selected=selected, tries=tries, **more)
    assert compare_record(record)["post"].kind == "equivalent"
    assert list(describe_luck(record)) == []


@pytest.mark.parametrize(
    ("post", "selected", "more", "told"),
    [
        (
            BETTER,
            [2.0, 2.3],
            {},
            "2.100, 2.000 and 2.300, and 2.000 is better than all fresh seeds",
        ),
        (BETTER, [2.06, 2.3], {}, ""),  # which one fresh seed of post is ahead of
        (PRE[::-1], [2.0, 2.3], {}, ""),  # undecided: nothing is claimed
        (
            BETTER,
            [2.0, 2.3],
            {"challenge": {}, "tries": {"pre": FURTHER}},
            "",
        ),  # which the challenge takes into account
        ([v + 0.1 for v in PRE], [2.0, 2.3], {}, ""),  # the winner's own choice
    ],
)
def test_a_loser_with_a_run_ahead_of_all_fresh_seeds_of_the_winner_may_have_better_settings(post, selected, more, told):
    more = {"challenge": {"trials": 0}, **more}
    record = build_record({"pre": PRE, "post": post}, selected={"pre": {0: [2.1], 1: selected}}, **more)
    notes = [note for note in describe_luck(record) if "may not be its best" in note]
    assert len(notes) == bool(told)
    assert told in " ".join(notes)
    assert all(note.startswith("The settings of pre may not be its best: at lr=0.002, where") for note in notes)


def test_where_more_is_better_a_loser_may_have_better_settings_too():
    values = {"pre": [0.51, 0.52, 0.50, 0.53, 0.51], "post": [0.61, 0.63, 0.60, 0.63, 0.60]}
    objective = {"metric": "val/accuracy", "direction": "maximize"}
    more = {
        "objective": objective,
        "experiment": {"model": "vit", "data": "digits", "seed": 7},
        "promised": {"pre": 0.5},
        "challenge": {"trials": 0},
    }
    for run, told in ((0.64, 1), (0.62, 0)):
        record = build_record(
            values, promised_all=0.5, selected={"pre": {0: [0.5], 1: [run, 0.4]}}, trivial_loss=None, **more
        )
        assert sum("may not be its best" in note for note in describe_luck(record)) == told


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
