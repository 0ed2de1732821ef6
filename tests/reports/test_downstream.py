"""Downstream scores in the report of a sweep."""

from dataclasses import replace

import pytest

from ablate.reports import downstream as module
from ablate.reports.downstream import compare_downstream, tabulate
from ablate.reports.report import assemble
from ablate.verdict.questions import Question, Score


def score(values, shots=0):
    questions = [Question(str(i), {"acc": value}, [0.0, -1.0]) for i, value in enumerate(values)]
    return Score("piqa", {"acc": sum(values) / len(values)}, {"acc": 0.1}, questions, shots).to_dict()


def test_runs_of_the_arms_are_paired_by_question(confirmed, tmp_path, monkeypatch, without_figures):
    record = confirmed
    fresh = [t.run_id for t in record.confirmed["mix"] if t.run_id]
    right = [1.0] * 30 + [0.0] * 10
    wrong = [1.0] * 10 + [0.0] * 30
    known = {record.best("pre").run_id: {"piqa": score(wrong)}}
    known |= {run_id: {"piqa": score(right)} for run_id in fresh}
    known["of another sweep"] = {"piqa": score(right)}
    monkeypatch.setattr(module, "read_scores", lambda experiment: known if experiment == record.title else {})
    found = compare_downstream(record)
    (row,) = found.rows
    assert found.runs == {"pre": 1, "mix": len(fresh)}
    assert row.means == {"pre": 0.25, "mix": 0.75}
    assert row.differences["mix"].mean == pytest.approx(0.5)
    assert row.differences["mix"].shown
    assert row.n == 40
    (table,) = tabulate(found, "pre")
    assert table.table.header == ["task", "shots", "metric", "n", "pre", "mix", "mix less pre"]
    assert table.table.rows[0][:6] == ["piqa", "0", "acc", "40", "0.2500", "0.7500"]
    assert table.table.rows[0][6].startswith("+0.5000 [+0.3")
    demo = assemble(record, tmp_path)
    assert "Downstream tasks" in demo.page()
    assert "Downstream tasks" in demo.table()
    assert demo.to_dict()["downstream"]["rows"][0]["differences"]["mix"]["n"] == 40


def test_means_are_over_the_questions_that_all_were_asked(confirmed, monkeypatch):
    known = {confirmed.best("pre").run_id: {"piqa": score([1.0, 0.0, 1.0, 1.0])}}
    known[confirmed.best("post").run_id] = {"piqa": score([0.0, 1.0])}
    monkeypatch.setattr(module, "read_scores", lambda experiment: known)
    (row,) = compare_downstream(replace(confirmed, confirmed={})).rows
    assert (row.n, row.means) == (2, {"pre": 0.5, "post": 0.5})
    assert row.differences["post"].mean == 0.0


def test_nothing_is_said_where_nothing_was_evaluated(made):
    assert compare_downstream(made.record).rows == []
    assert tabulate(compare_downstream(made.record), "pre") == []
    assert "Downstream" not in made.table()
