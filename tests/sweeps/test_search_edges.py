"""Arms whose best settings lie at an end of a searched range: told beside their verdicts, wherever these are."""

import json
from dataclasses import replace

import pytest
from reports.hand_built import LR, build_record, run
from run_table import put

from ablate.reports.mlflow_run import describe
from ablate.reports.report import assemble
from ablate.sweeps.search.axes import Axis
from ablate.sweeps.search_edges import Edge, find_edges
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.verdict_summary import summarise_verdict

PRE, POST = [2.10, 2.14, 2.11, 2.16, 2.12], [2.25, 2.30, 2.26, 2.32, 2.27]


@pytest.mark.parametrize(
    ("rate", "end"), [(1e-4, "lower"), (1.1e-4, "lower"), (1e-3, ""), (9e-2, "upper"), (1e-1, "upper")]
)
def test_a_rate_near_an_end_is_at_it(rate, end):
    """Within 3 % of the range, which is logarithmic: a factor of 1.23 here."""
    record = build_record({"pre": PRE}, rates={"pre": rate})
    assert find_edges(record, "pre") == ([Edge(LR, end, 1e-4, 1e-1)] if end else [])


def test_there_is_no_end_where_nothing_lies_beyond_or_two_values_are_compared():
    arms = {"mix": {"norm": "mix", "search": {"norm.alpha": {"low": 0.0, "high": 1.0}}}}
    search = {LR: [1e-3, 1e-2], "optimizer.weight_decay": [0.1, 0.2, 0.3]}
    tree = {"name": "judged", "experiment": {"model": "llama", "data": "topics"}, "arms": arms, "search": search}
    record = replace(build_record({"mix": PRE}), spec=Sweep.from_tree({**tree, "budget": {"trials": 1}}))
    params = {LR: 1e-2, "norm.alpha": 1.0, "optimizer.weight_decay": 0.3}
    record = put(record, trials={"mix": [run("mix", 0, params, 2.0)]})
    assert [(edge.path, edge.end) for edge in find_edges(record, "mix")] == [("optimizer.weight_decay", "upper")]


def test_a_null_among_numbers_is_none_of_the_ends():
    assert Axis.of([None, 0.5, 1.0, 2.0], 3) == Axis.of([0.5, 1.0, 2.0], 3)
    assert Axis.of(["a", 0.5, 1.0], 3) is Axis.of([None, 0.5], 3) is None
    assert Axis.of([None, 0.5, 1.0], 3).find_end(0.0) == ""  # two values are both ends


def test_it_is_told_beside_the_verdict(tmp_path):
    """In the line, in the sentences, in the table, on the page, in JSON and in MLflow, and not among the notes."""
    rates = {"pre": 1e-1, "post": 1e-1}
    record = build_record({"pre": PRE, "post": POST}, rates=rates, challenge={"trials": 0})
    record = replace(record, chosen={"pre": 0, "post": 0})
    made = assemble(record, tmp_path, draw=False)
    line = summarise_verdict(record)
    assert line.startswith(f"Verdict against pre, which is at the upper end of its range of {LR}: post ")
    assert f": post inconclusive, not tuned, at the upper end of its range of {LR} (mean +0.15" in line
    sentence = (
        f"The best {LR} of pre and post is at the upper end of the searched range (0.0001 to 0.1): a better value"
    )
    assert sentence in made.verdict
    assert not any("lie beyond it" in note for note in made.notes)
    plain = made.to_dict()
    assert (plain["summary"], plain["verdict"]) == (line, made.verdict)
    told = {"path": LR, "end": "upper", "low": 1e-4, "high": 1e-1}
    assert plain["arms"]["post"]["at_end_of_range"] == [told]
    json.dumps(plain)
    for text in (made.table(), made.page(), describe(made.document, "1", "2", "report.html").replace("\\", "")):
        words = " ".join(text.split())
        assert line in words
        assert sentence in words
    assert f"baseline, at the upper end of its range of {LR}" in made.page()
