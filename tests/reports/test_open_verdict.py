"""Cautions: what a verdict waits for, and what it does not cover."""

import pytest
from run_table import put

from ablate.reports.confirmation import describe_verdict
from ablate.reports.findings import list_cautions
from ablate.reports.open_verdict import describe_luck, describe_open_verdict
from ablate.sweeps.comparison import compare_record

from .hand_built import build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]
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


def test_missing_crossed_runs_are_counted():
    record = build_record({"pre": PRE, "post": BETTER}, rates={"post": 1e-2}, crossed={"post": ("pre", [2.2, 2.1])})
    assert list(describe_open_verdict(record)) == [
        "pre is still to be trained at the settings of post: 2 of 5 seeds are done. Until then nothing is claimed "
        "about the two."
    ]


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
        (BETTER, {"post": 1e-2}, ""),  # crossed
    ],
)
def test_claims_that_were_not_crossed_are_told(values, rates, told):
    notes = list(describe_luck(build_record({"pre": PRE, "post": values}, rates=rates)))
    assert len(notes) == bool(told)
    assert told in " ".join(notes)
    assert all("at different settings (optimizer.lr 0.01 and 0.001)" in note for note in notes)


def test_an_equivalence_at_different_settings_was_not_crossed():
    even = [2.11, 2.13, 2.115, 2.155, 2.125]
    record = build_record({"pre": PRE, "post": even}, rates={"post": 1e-2}, confirm={"seeds": 5, "effect": 0.05})
    (note,) = describe_luck(record)
    assert "(equivalent)" in note


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
        (BETTER, [2.0], {"rates": {"post": 2e-3}, "crossed": {"post": ("pre", PRE)}}, ""),  # tested there by crossing
        ([v + 0.1 for v in PRE], [2.0, 2.3], {}, ""),  # the winner's own choice
    ],
)
def test_a_loser_with_a_run_ahead_of_all_fresh_seeds_of_the_winner_may_have_better_settings(post, selected, more, told):
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
    }
    for run, told in ((0.64, 1), (0.62, 0)):
        record = build_record(
            values, promised_all=0.5, selected={"pre": {0: [0.5], 1: [run, 0.4]}}, trivial_loss=None, **more
        )
        assert sum("may not be its best" in note for note in describe_luck(record)) == told
