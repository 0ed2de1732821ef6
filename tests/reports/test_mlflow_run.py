"""The report in MLflow: labels, bands and the description."""

import math
from dataclasses import replace

import pytest
from run_table import put

from ablate import tracking
from ablate.plots.figure import Figure
from ablate.reports import report as module
from ablate.reports.mlflow_run import NOTE, describe, label_arm, label_parents
from ablate.reports.report import assemble
from ablate.reports.section import Document
from ablate.sweeps.comparison import compare_record

from .hand_built import add_curves, build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]


def test_the_verdict_is_on_the_runs(tmp_path, monkeypatch, without_figures):
    record = build_record({"pre": PRE, "post": [*BETTER[:4], None]})
    parents = {arm: tracking.Tracker.start("judged", arm, {}).run_id for arm in ("pre", "post")}
    monkeypatch.setattr(module, "read_sweep", lambda title, storage: replace(record, parents=parents))
    made = module.report("judged", folder=tmp_path)
    data = tracking.client().get_run(made.mlflow["run_id"]).data
    assert data.tags["ablate.verdict"] == made.verdict
    parent = tracking.client().get_run(parents["post"]).data
    versus = compare_record(record)["post"].versus
    told = "mixed: better when it trains, failed more"
    assert (parent.tags["ablate.verdict"], parent.tags["ablate.baseline"]) == (told, "pre")
    assert parent.tags[NOTE].startswith(f"Against pre: post {told} (")
    assert "failed on 1 of 5 seeds" in parent.tags[NOTE]
    assert parent.metrics["verdict/difference_when_both_trained"] == pytest.approx(versus.difference.mean)
    ends = parent.metrics["verdict/difference_low"], parent.metrics["verdict/difference_high"]
    assert ends == pytest.approx(versus.interval)
    assert parent.metrics["verdict/difference_seeds"] == 4
    assert "verdict/difference_low" not in tracking.client().get_run(parents["pre"]).data.metrics


def test_a_parent_run_that_is_gone_is_no_trouble(tmp_path, monkeypatch, without_figures):
    record = replace(build_record({"pre": PRE, "post": BETTER}), parents={"pre": "gone", "post": "gone too"})
    monkeypatch.setattr(module, "read_sweep", lambda title, storage: record)
    assert not any("only" in note for note in module.report("judged", folder=tmp_path).notes)


def test_what_is_not_known_takes_the_place_of_what_was():
    record = build_record({"pre": PRE, "post": [None] * 5})
    metrics = label_arm(record, "post", compare_record(record)).metrics
    assert (metrics["verdict/failures"], metrics["verdict/difference_seeds"]) == (5, 0)
    assert all(math.isnan(metrics[f"verdict/{name}"]) for name in ("mean_when_trained", "difference_low"))


POST = [2.05, 2.10, 2.06, 2.12, None]


def test_the_parent_has_the_band_once_and_the_experiment_the_verdict(tmp_path, monkeypatch, without_figures):
    record = add_curves(build_record({"pre": PRE, "p*st": POST}))
    parents = {arm: tracking.Tracker.start("judged", arm, {}).run_id for arm in ("pre", "p*st")}
    monkeypatch.setattr(module, "read_sweep", lambda title, storage: replace(record, parents=parents))
    made = module.report("judged", folder=tmp_path)
    module.report("judged", folder=tmp_path)
    client = tracking.client()
    metric = record.spec.objective.metric
    for suffix, value in {"": 2.126, "_lowest_seed": 2.10, "_highest_seed": 2.16}.items():
        points = client.get_metric_history(parents["pre"], f"{metric}{suffix}")
        assert [point.value for point in points][-1] == pytest.approx(value)
        assert len(points) == 2
    metrics = client.get_run(parents["pre"]).data.metrics
    assert metrics["verdict/mean_low"] < metrics["verdict/mean_when_trained"] < metrics["verdict/mean_high"]
    run = client.get_run(made.mlflow["run_id"])
    note = run.data.tags["mlflow.note.content"]
    plain = note.replace("\\", "")
    assert plain.startswith(f"{made.summary}\n")
    assert plain.index("](get-artifact") < plain.index(made.verdict) if made.figures else made.verdict in plain
    assert r"p\*st" in note
    assert f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts" in note
    assert client.get_experiment(run.info.experiment_id).tags["mlflow.note.content"] == note


@pytest.mark.parametrize(("fresh", "drawn"), [
    ({"pre": PRE, "post": [2.0, *[None] * 4]}, {"pre": 2.126, "post": 2.0}),  # 4 of 5: not shown to fail more often
    ({"pre": PRE * 2, "post": [2.0, *[None] * 9]}, {"pre": 2.126, "post": math.nan}),
    ({"pre": [2.0, *[None] * 9], "post": PRE * 2}, {"pre": math.nan, "post": 2.126}),
    ({"pre": PRE, "post": [None] * 5}, {"pre": 2.126, "post": math.nan}),
])  # fmt: skip
def test_compare_opens_on_the_mean_of_fresh_seeds_unless_the_arm_fails_more(store, fresh, drawn):
    """MLflow's Compare opens on the first metric that all runs have, and draws no line for NaN."""
    record = add_curves(build_record(fresh))
    record = replace(record, parents={arm: tracking.Tracker.start("judged", arm, {}).run_id for arm in fresh})
    for _ in range(2):
        label_parents(record, compare_record(record))
    for arm, value in drawn.items():
        metrics = tracking.client().get_run(record.parents[arm]).data.metrics
        assert next(iter(metrics)) == "val/loss"
        assert metrics["val/loss"] == pytest.approx(value, nan_ok=True)
        assert len(tracking.client().get_metric_history(record.parents[arm], "val/loss")) == 1 + (value == value)


def test_the_list_of_experiments_shows_the_verdict_without_marks(tmp_path):
    """It shows the source of the description; an underscore within a word needs no mark, one around it does."""
    record = build_record({"pre": PRE, "sub_ln": POST, "__x__": POST})
    first, *rest = describe(assemble(record, tmp_path, draw=False).document, "1", "2", "report.html").split("\n\n")
    assert first == assemble(record, tmp_path, draw=False).summary.replace("__x__", r"\_\_x\_\_")
    assert "sub_ln" in rest[1]
    early = describe(assemble(put(record, confirmed={}), tmp_path, draw=False).document, "1", "2", "report.html")
    assert early.startswith("No verdict yet: no fresh seed has ended. Best of 1 trial: ")


def test_the_description_shows_the_first_figure():
    figures = [Figure("verdict", "", []), Figure("bands", "", [])]
    text = describe(Document("demo", statements=["A is better."], figures=figures), "1", "2", "report.html")
    assert "![verdict.svg](get-artifact?path=verdict.svg&run_uuid=2)" in text
    assert "bands" not in text
