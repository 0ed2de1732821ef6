"""The tables of the verdict, and the whole report of sweeps that invite a wrong reading: terminal, page and JSON."""

import json
from dataclasses import replace

import pytest

from ablate.reports.report import assemble
from ablate.reports.sections import PARTS
from ablate.reports.terminal import to_text
from ablate.reports.verdict_sections import format_share, tabulate_confirmed, tabulate_crossed, tabulate_selection
from ablate.verdict.failures import count_failures
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome

from .hand_built import STUCK, build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]
ALL_FAIL = build_record({"pre": PRE, "post": [None, STUCK, None, None, STUCK]}, promised={"pre": 2.0, "post": 1.5})
SELECTED = build_record(
    {"pre": PRE, "post": BETTER},
    selected={"pre": {0: [2.1, 2.12], 3: [2.2, None]}, "post": {0: [2.0, 2.02], 1: [STUCK, 2.4], 2: [2.1, "failed"]}},
)
CROSSED = build_record(
    {"pre": PRE, "post": BETTER},
    rates={"post": 1e-2},
    crossed={"post": ("pre", [2.04, 2.11, 2.07, None, 2.08])},
)


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


def test_crossed_settings_are_shown(make):
    (row,) = rows(tabulate_crossed(*parts(make(CROSSED))))
    assert (row["arms"], row["trained at the other's settings"], row["lr"]) == ("post, pre", "pre", "0.01")
    assert row["claimed"] == "no, it does not hold there"
    assert row["failed there"] == "0 of 5, pre 1 of 5"
    assert row["crossed: difference to pre"].endswith("(n=4, 1 left out)")
    open_one = replace(CROSSED, runs=CROSSED.runs.replace(run for run in CROSSED.runs if run.stage != "crossed"))
    assert rows(tabulate_crossed(*parts(make(open_one))))[0]["claimed"] == "not yet: not run"
    short = build_record({"pre": PRE, "post": BETTER}, rates={"post": 1e-2}, crossed={"post": ("pre", [2.2, 2.21])})
    assert rows(tabulate_crossed(*parts(make(short))))[0]["claimed"] == "not yet: seeds are missing"
    lost = build_record({"pre": PRE, "post": BETTER}, rates={"post": 1e-2}, crossed={"post": ("pre", [None] * 5)})
    assert rows(tabulate_crossed(*parts(make(lost))))[0]["claimed"] == "yes, it holds at both"
    unused = build_record({"pre": PRE, "post": PRE[::-1]}, rates={"post": 1e-2}, crossed={"post": ("pre", PRE)})
    (section,) = tabulate_crossed(*parts(make(unused)))
    assert "do not affect the verdict" in section.sentences[0]
    assert tabulate_crossed(*parts(make(ALL_FAIL))) == []


def test_json_has_the_candidates_and_the_crossed_runs(make):
    arms = make(SELECTED).to_dict()["arms"]
    first, _, third = arms["post"]["candidates"]
    assert (first["trial"], first["chosen"], third["chosen"]) == (0, True, False)
    assert first["outcomes"]["900"] == {"ending": "trained", "value": 2.0}
    assert [run["status"] for run in third["runs"]] == ["completed", "failed"]
    assert (arms["post"]["selection_cost"]["trials"], arms["post"]["crossed"]) == (6, None)
    arms = make(CROSSED).to_dict()["arms"]
    assert (arms["post"]["crossed"]["loser"], len(arms["post"]["crossed"]["runs"])) == ("pre", 5)
    assert (arms["pre"]["crossed_cost"]["trials"], arms["post"]["crossed_cost"]["trials"]) == (5, 0)
    assert arms["post"]["confirmed"]["crossing"]["versus"]["left_out"] == 1
    assert arms["post"]["confirmed"]["crossing"]["agrees"] is False


def test_what_every_run_took_is_counted(make):
    made = make(SELECTED)
    (section,) = [
        s
        for part in PARTS
        for s in part.tabulate(made)
        if s.title.startswith("Compute per arm (search / selection / confirmation)")
    ]
    row = dict(zip(section.table.header, section.table.rows[1], strict=True))
    assert (row["runs"], row["selection runs"], row["confirmation runs"]) == ("3", "6", "5")
    assert "crossed runs" not in row
    assert section.sentences == ["selection: to choose among its candidates; confirmation: on fresh seeds."]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "record",
    [
        ALL_FAIL,
        SELECTED,
        CROSSED,
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
