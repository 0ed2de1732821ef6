"""The verdict in the report: text, rules and sections."""

import dataclasses
import json
from dataclasses import replace

import pytest

from ablate.reports.report import assemble
from ablate.reports.sections import PARTS
from ablate.reports.terminal import to_text
from ablate.reports.verdict_sections import (
    describe_unreproduced,
    describe_verdict,
    explain_comparison,
    tabulate_challenges,
    tabulate_confirmed,
    tabulate_selection,
)
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.verdict_summary import name_verdict
from ablate.verdict.failures import count_failures
from ablate.verdict.intervals import bound_mean
from ablate.verdict.looks import Looks, nominal_levels
from ablate.verdict.outcomes import Outcome
from ablate.verdict.statements import format_share

from .hand_built import STUCK, build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]
WORSE = [2.15, 2.21, 2.16, 2.22, 2.18]
EVEN = [2.11, 2.13, 2.115, 2.155, 2.125]
WORSE_TRIES = {3e-4: [2.21, 2.31, 2.335], 2e-3: [2.05, 2.16, 2.18], 8e-3: [2.4, 2.51, 2.53]}
"""Learning rate -> values of pre, worse the further it is from the chosen 1e-3."""


def build_challenged(tries, challenge):
    """A loser that tried other learning rates than the one that was chosen."""
    selected = {"pre": {0: [2.10, 2.12]}}
    more = {"selected": selected, "tries": {"pre": tries} if tries else {}, "challenge": challenge}
    return build_record({"pre": PRE, "post": BETTER}, **more)


def judge(record):
    return compare_record(record), describe_verdict(record, compare_record(record))


def test_the_numbers_are_those_of_the_statistics(confirmed):
    found = compare_record(confirmed)
    (level,) = nominal_levels(Looks((5,), 5), 0.05 / 2)
    pairs = [a - b for a, b in zip(BETTER, PRE, strict=True)]
    assert found["mix"].difference.mean == pytest.approx(sum(pairs) / 5)
    assert found["mix"].difference.half_width == pytest.approx(bound_mean(pairs, level, scale=2.16).half_width)
    assert (found["mix"].kind, found["mix"].family, found["pre"].versus) == ("better", 2, None)
    assert (found["post"].failures.failed, found["post"].failures.n, found["post"].estimate.n) == (2, 5, 3)
    assert (found["post"].difference.n, found["post"].versus.left_out) == (3, 2)
    assert found["mix"].params == confirmed.best("mix").params
    json.dumps([c.to_dict() for c in found.values()])


def test_a_search_that_got_stuck_promised_nothing():
    record = build_record({"pre": PRE, "post": [None] * 5}, promised={"post": STUCK})
    assert not any(text.startswith("post ") for text in describe_unreproduced(record, judge(record)[0]))


def test_an_arm_that_diverges_on_every_seed_is_not_told_by_its_search():
    record = build_record({"pre": PRE, "post": [None] * 5}, promised={"post": 1.5})
    found, text = judge(record)
    assert found["post"].kind == "fails on all seeds"
    assert "post failed on all of 5 seeds (55 % or more, one-sided 95 %), pre on 0 of 5" in text
    assert "1.5" not in text
    assert list(describe_unreproduced(record, found))[1] == (
        "post does not reproduce what its settings reached in the search, 1.500: it trained on none of 5 fresh seeds."
    )


def test_stuck_seeds_fail_where_the_trivial_loss_is_known():
    values = {"pre": PRE, "post": [2.0, STUCK, STUCK, 2.05, 2.01]}
    found, text = judge(build_record(values))
    assert (found["post"].kind, found["post"].failures.stuck) == ("mixed", 2)
    assert name_verdict(build_record(values), "post", found) == "mixed: better when it trains, failed more"
    assert "nats (over the 3 of 5 seeds on which both trained; 2 left out); it failed on 2 of 5 seeds" in text
    unknown = build_record(values, trivial_loss=None)
    found, _ = judge(unknown)
    assert (found["post"].failures.failed, found["post"].difference.n) == (0, 5)
    assert any("is unknown" in text for text in explain_comparison(unknown, found))


@pytest.mark.parametrize(
    ("values", "confirm", "kind", "word"),
    [
        (BETTER, {}, "better", "better"),
        (WORSE, {}, "worse", "worse"),
        ([2.16, 2.21, None, 2.23, 2.18], {}, "worse", "worse"),
        (EVEN, {}, "undecided", "inconclusive with 5 seeds"),
        (EVEN, {"effect": 0.05}, "equivalent", "equivalent within 0.05"),
        (BETTER, {"effect": 0.2}, "better", "better, by less than matters"),
    ],
)
def test_the_word_is_the_verdict(values, confirm, kind, word):
    record = build_record({"pre": PRE, "post": values}, confirm={"seeds": 5, **confirm})
    found, _ = judge(record)
    assert found["post"].kind == kind
    assert name_verdict(record, "post", found) == word
    missing = any("No confirm.effect is given" in text for text in explain_comparison(record, found))
    assert missing == (not confirm)


def test_a_baseline_that_fails_everywhere_is_told_so():
    record = build_record({"pre": [None] * 5, "post": BETTER})
    found, text = judge(record)
    assert found["post"].kind == "baseline fails on all seeds"
    assert name_verdict(record, "pre", found) == "baseline, fails on all seeds"
    assert "pre, the baseline, failed on all of 5 seeds, post on 0 of 5" in text


def test_an_arm_whose_search_never_completes_could_not_be_trained():
    record = build_record({"pre": PRE, "post": []}, promised={"post": None})
    found, text = judge(record)
    assert found["post"].kind == "could not be trained"
    assert "post could not be trained within the budget: no trial of its search completed, so no fresh" in text
    longer = record.spec.model_copy(
        update={"budget": record.spec.budget.model_copy(update={"trials": 2})}
    )  # its search goes on
    found, text = judge(dataclasses.replace(record, spec=longer))
    assert found["post"].kind == "figures"
    assert "There is no seed yet on which both post and pre have ended" in text


def test_so_does_a_baseline():
    record = build_record({"pre": [], "post": BETTER}, promised={"pre": None})
    found, text = judge(record)
    assert name_verdict(record, "pre", found) == "baseline, could not be trained"
    assert (
        "pre, the baseline, could not be trained within the budget: no fresh seed was run. post failed on 0 of 5"
        in text
    )


def test_so_does_a_sweep_of_which_no_search_completes():
    lost = {"pre": None, "post": None}
    record = build_record({"pre": [], "post": []}, promised=lost, confirm={"seeds": 3}, looks=None)
    found, text = judge(record)
    assert text == "pre and post could not be trained within the budget: no trial of any search completed."
    words = [name_verdict(record, arm, found) for arm in found]
    assert words == ["baseline, could not be trained", "could not be trained"]


def test_where_no_seed_learned_anything_it_is_said():
    lost = build_record({"pre": [STUCK, None, STUCK], "post": [STUCK] * 3})
    assert any("No seed of any arm learned anything" in text for text in explain_comparison(lost, judge(lost)[0]))
    one = build_record({"pre": [STUCK, 2.0, STUCK], "post": [STUCK] * 3})
    assert not any("learned anything" in text for text in explain_comparison(one, judge(one)[0]))


def test_one_arm_is_compared_with_nothing():
    record = build_record({"pre": [*PRE[:4], None]})
    _, text = judge(record)
    assert text.startswith("pre failed on 1 of 5 seeds (1 diverged; 1 to 72 %); when it trains: 2.127 ± ")
    assert text.endswith("There is only one arm, so there is no comparison.")


def test_two_seeds_are_figures():
    record = build_record({"pre": PRE[:2], "post": BETTER[:2]})
    found, text = judge(record)
    assert text.endswith("post, difference to pre: -0.045 nats (n = 2). No verdict yet: it requires 3 seeds.")
    told = " ".join(explain_comparison(record, found))
    assert "no interval yet" in told
    assert "joint error of 5 %" not in told


@pytest.mark.parametrize(
    ("tries", "trials", "word", "told"),
    [
        (
            {},
            6,
            "inconclusive, not yet challenged",
            "post is better by 0.0460 ± 0.0073 nats (n = 5), but pre may still",
        ),
        ({3e-3: [2.0, 2.13, 2.13]}, 1, "inconclusive, as the tuning was not exhausted", "pre's tuning was not exhaust"),
        (
            WORSE_TRIES,
            3,
            "better",
            "post is better than pre on a typical seed; mean difference 0.0460 ± 0.0073 nats (n = 5).",
        ),
        ({}, 0, "better", "On fresh seeds, each arm at its chosen settings: post is better than pre"),
    ],
)
def test_a_loser_is_challenged(tries, trials, word, told):
    record = build_challenged(tries, {"trials": trials})
    found, text = judge(record)
    assert name_verdict(record, "post", found) == word
    assert told in text


def test_nothing_is_claimed_of_an_arm_at_the_end_of_its_range():
    record = build_record({"pre": PRE, "post": BETTER}, rates={"pre": 1e-4}, selected={"pre": {0: [2.1, 2.12]}})
    found, text = judge(record)
    assert name_verdict(record, "post", found) == "inconclusive, not tuned"
    assert "but pre is at the lower end of its range of optimizer.lr: it was not tuned." in text


def test_looks_are_counted():
    confirm = {"seeds": {"min": 3, "max": 12}, "effect": 0.05}
    record = build_record({"pre": PRE, "post": BETTER}, confirm=confirm, looks=Looks((3, 4, 5), 12))
    found, text = judge(record)
    assert "and every look: 3 looks at 3, 4 and 5 seeds (12 were planned)." in text
    once = compare_record(build_record({"pre": PRE, "post": BETTER}))["post"]
    assert found["post"].difference.half_width > once.difference.half_width
    waiting = build_record({"pre": PRE, "post": BETTER}, confirm=confirm, looks=Looks((3, 4), 12))
    told = list(explain_comparison(waiting, compare_record(waiting)))
    assert any("are only included at the next look: pre 1 and post 1." in text for text in told)


def test_settings_that_no_candidates_were_compared_for_are_named():
    values = {"pre": PRE, "post": BETTER}
    asked = build_record(values, tried=2, confirm={"seeds": 5, "candidates": 1})
    for record in (build_record(values), asked):
        told = list(explain_comparison(record, compare_record(record)))
        assert "The settings of pre and post are those of the best trial of the search: no candidates were " in told[-1]
    chosen = build_record(values, tried=2, selected={arm: {0: [2.0, 2.1], 1: [2.2, 2.3]} for arm in values})
    assert not any("candidates were" in text for text in explain_comparison(chosen, compare_record(chosen)))


def test_more_may_be_better_and_counting_has_a_floor():
    objective = {"metric": "val/accuracy", "direction": "maximize"}
    values = {"pre": [0.80, 0.82, 0.81], "post": [0.81, 0.83, 0.82]}
    record = build_record(values, objective=objective, experiment={"model": "vit"}, promised={"pre": 0.5, "post": 0.99})
    assert compare_record(record)["post"].kind == "undecided"  # equal differences show nothing
    counted = dataclasses.replace(record, validation_items=10_000)
    found = compare_record(counted)
    assert found["post"].kind == "better"
    assert [text.split()[0] for text in describe_unreproduced(counted, found)] == ["post"]


def test_a_seed_that_crashed_is_no_outcome():
    record = build_record({"pre": PRE, "post": [*BETTER[:4], "failed"]}, looks=Looks((4,), 4))
    assert len(compare_record(record)["post"].outcomes) == 4


def test_without_fresh_seeds_nothing_is_claimed(record):
    assert compare_record(record) == {}
    assert describe_verdict(record, {}) == ""


def test_seeds_that_share_a_start_are_told():
    start = {"warm_start": {"from": "sweep:first/one", "copy": ["embedding"]}}
    shared = build_record({"pre": PRE, "post": BETTER}, experiment={"model": "llama", "data": "topics", **start})
    text = describe_verdict(shared, compare_record(shared))
    assert "all seeds of pre one stage-1 model (sweep:first/one)" in text
    assert "the intervals do not include the variance of these models" in text


ALL_FAIL = build_record({"pre": PRE, "post": [None, STUCK, None, None, STUCK]}, promised={"pre": 2.0, "post": 1.5})
SELECTED = build_record(
    {"pre": PRE, "post": BETTER},
    selected={"pre": {0: [2.1, 2.12], 3: [2.2, None]}, "post": {0: [2.0, 2.02], 1: [STUCK, 2.4], 2: [2.1, "failed"]}},
)
CHALLENGED = build_challenged({**WORSE_TRIES, 1e-2: [2.6, None, "failed"]}, {"trials": 4})


def rows(sections):
    (section,) = sections
    return [dict(zip(section.table.header, row, strict=True)) for row in section.table.rows]


def parts(made):
    return made.record, made.confirmed


@pytest.fixture
def make(tmp_path, without_figures):
    return lambda record: assemble(record, tmp_path)


@pytest.mark.parametrize(
    ("failed", "n", "told"),
    [
        (0, 3, "0 of 3: up to 63 %"),
        (2, 5, "2 of 5 (2 diverged): 5 to 85 %"),
        (5, 5, "5 of 5 (5 diverged): at least 55 %"),
    ],
)
def test_shares_are_told_with_their_intervals(failed, n, told):
    outcomes = [Outcome("diverged")] * failed + [Outcome("trained", 1.0)] * (n - failed)
    assert format_share(count_failures(outcomes)) == told


def test_the_table_of_fresh_seeds(make):
    pre, post = rows(tabulate_confirmed(*parts(make(ALL_FAIL))))
    assert (pre["verdict"], post["verdict"]) == ("baseline", "fails on all seeds")
    assert post["failed"] == "5 of 5 (3 diverged, 2 stuck): at least 55 %"
    assert (post["val/loss"], post["difference to pre"], post["lr"]) == ("-", "-", "0.001")
    mixed = build_record({"pre": PRE, "post": [2.0, None, 2.01, 2.05, 2.01]})
    assert rows(tabulate_confirmed(*parts(make(mixed))))[1]["difference to pre"].endswith("(n=4, 1 left out)")


def test_no_reading_ranks_an_arm_first_that_failed_on_every_fresh_seed(make):
    """The search, where it was best, stands beneath and is called what it is."""
    made = make(ALL_FAIL)
    text, page, plain = " ".join(made.table().split()), made.page(), made.to_dict()
    promise = (
        "post does not reproduce what its settings reached in the search, 1.500: it trained on none of 5 fresh seeds."
    )
    for told in (text, page):
        assert "post failed on all of 5 seeds" in told
        assert promise in told
        assert "Best of" not in told
        assert told.index("fails") < told.index("Search results (best of 1 on one seed: optimistic)")
        assert told.index("1.500") > told.index("fails")
    assert plain["verdict"].startswith("On fresh seeds")
    assert plain["arms"]["post"]["confirmed"]["kind"] == "fails on all seeds"
    assert plain["arms"]["post"]["confirmed"]["outcomes"]["9"] == {"ending": "stuck", "value": STUCK}


def test_all_candidates_are_shown(make):
    (section,) = tabulate_selection(make(SELECTED).record)
    found = rows([section])
    assert [row["trial"] for row in found] == ["0", "3", "0", "1", "2"]
    assert [row["chosen"] for row in found] == ["yes", "no", "yes", "no", "no"]
    assert section.table.strong == {0, 2}
    assert (found[0]["mean"], found[1]["mean"], found[1]["failed"]) == ("2.110 (2)", "2.200 (1)", "1 of 2")
    assert (found[3]["failed"], found[4]["seeds"], found[4]["in the search"]) == ("1 of 2", "1/2", "2.200")
    assert "2 selection seeds" in section.sentences[0]
    assert not any(text.startswith("The chosen settings") for text in section.sentences)
    lost = replace(SELECTED, chosen={**SELECTED.chosen, "pre": 3})
    (section,) = tabulate_selection(make(lost).record)
    assert section.sentences[-1] == "The chosen settings of pre failed on 1 of 2 selection seeds."
    undecided = replace(SELECTED, chosen={})
    assert {row["chosen"] for row in rows(tabulate_selection(make(undecided).record))} == {"not yet"}
    assert tabulate_selection(make(ALL_FAIL).record) == []


def test_other_settings_of_a_loser_are_shown(make):
    (section,) = tabulate_challenges(make(CHALLENGED).record)
    first, *_, last = rows([section])
    assert section.title == "Other settings of the arms that lost"
    assert (first["arm"], first["trial"], first["lr"]) == ("pre", "1", "0.0003")
    assert (first["seeds"], first["failed"], first["mean"], first["chosen"]) == ("3", "0 of 3", "2.285 (3)", "no")
    assert (last["seeds"], last["failed"], last["mean"]) == ("2", "1 of 2", "2.600 (1)")
    assert section.sentences[1].startswith(
        "post: the comparison stands at all other settings; nearest to overturn it, "
    )
    assert "is expected to gain -0.0" in section.sentences[1]
    again = replace(CHALLENGED, chosen={"pre": 2})
    chosen = [row["chosen"] for row in rows(tabulate_challenges(make(again).record))]
    assert chosen == ["no", "yes", "no", "no"]
    (section,) = tabulate_challenges(make(build_challenged({}, {})).record)  # before the first of them
    assert section.table is None
    assert section.sentences == [
        "post: the comparison does not stand at all other settings; nearest to overturn it, nothing is known of some "
        "settings of pre."
    ]
    (section,) = tabulate_challenges(make(build_challenged({3e-3: [2.0, 2.13, 2.13]}, {"trials": 1})).record)
    assert section.sentences[-1] == "The same command goes on with a larger challenge.trials."
    assert tabulate_challenges(make(build_challenged({}, {"trials": 0})).record) == []
    assert tabulate_challenges(make(ALL_FAIL).record) == []


def test_json_has_the_candidates_and_the_further_settings(make):
    arms = make(SELECTED).to_dict()["arms"]
    first, _, third = arms["post"]["candidates"]
    assert (first["trial"], first["chosen"], third["chosen"]) == (0, True, False)
    assert first["outcomes"]["1008"] == {"ending": "trained", "value": 2.0}
    assert [run["status"] for run in third["runs"]] == ["completed", "failed"]
    assert (arms["post"]["selection_cost"]["trials"], arms["post"]["challenge"]) == (6, [])
    arms = make(CHALLENGED).to_dict()["arms"]
    tries = [(one["trial"], one["params"], len(one["runs"])) for one in arms["pre"]["challenge"]]
    assert tries == [(i, {"optimizer.lr": lr}, 3) for i, lr in enumerate((3e-4, 2e-3, 8e-3, 1e-2), 1)]
    assert (arms["pre"]["challenge_cost"]["trials"], arms["post"]["challenge_cost"]["trials"]) == (12, 0)
    challenge = arms["post"]["confirmed"]["challenge"]
    assert (challenge["held"], challenge["open"], challenge["unheld"], [*challenge["rivals"]]) == (
        True,
        [],
        [],
        ["pre"],
    )


def test_what_every_run_took_is_counted(make):
    made = make(SELECTED)
    (section,) = [
        s
        for part in PARTS
        for s in part.tabulate(made)
        if s.title.startswith("Compute per arm (search / selection / confirmation)")
    ]
    row = dict(zip(section.table.header, section.table.rows[1], strict=True))
    assert [row[kind].split(", ")[0] for kind in ("search", "selection", "confirmation")] == ["3", "6", "5"]
    assert "challenge" not in row
    assert section.sentences == ["selection: to choose among its candidates; confirmation: on fresh seeds."]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "record",
    [
        ALL_FAIL,
        SELECTED,
        CHALLENGED,
        build_challenged({}, {}),
        build_record({"pre": PRE}),
        build_record({"pre": PRE[:2], "post": BETTER[:2]}),
        build_record({"pre": [None] * 3, "post": [None] * 3, "mix": BETTER[:3]}),
        build_record({"pre": PRE, "post": BETTER}, looks=None, trivial_loss=None),
        build_record({"pre": PRE, "post": []}, promised={"post": None}),
        build_record({"pre": [], "post": BETTER}, promised={"pre": None}),
        build_record({"pre": ["running"], "post": []}, looks=None),
        build_record({"pre": [], "post": []}, promised={"pre": None, "post": None}, confirm={"seeds": 3}, looks=None),
        build_record(
            {"pre": PRE, "post": BETTER},
            looks=Looks((3, 4), 12),
            confirm={"seeds": {"min": 3, "max": 12}, "effect": 0.05},
        ),
    ],
)
def test_every_report_can_be_made_and_leads_with_the_verdict(make, record, width):
    made = make(record)
    text = to_text(made.document, width)
    assert all(len(line) <= width for line in text.partition("Files")[0].splitlines())
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False)) == made.to_dict()
    assert "Best of" not in made.verdict
    title = "Search results (best of "
    for told in (text, made.page()):
        assert " ".join(told.split()).index("erdict") < " ".join(told.split()).index(title)
    assert text.strip().splitlines()[2] == "Verdict"
