"""The verdict in MLflow: on the report's run and on the parent run of each arm."""

import math
from dataclasses import replace

import pytest

from ablate import tracking
from ablate.reports import report as module
from ablate.reports.mlflow_run import label_arm, label_report
from ablate.sweeps.comparison import compare_record

from .hand_built import build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]


def test_the_verdict_is_on_the_runs(tmp_path, monkeypatch, without_figures):
    record = build_record({"pre": PRE, "post": [*BETTER[:4], None]})
    parents = {arm: tracking.Tracker.start("judged", arm, {}).run_id for arm in ("pre", "post")}
    monkeypatch.setattr(module, "read_sweep", lambda title, storage: replace(record, parents=parents))
    made = module.report("judged", folder=tmp_path)
    data = tracking.client().get_run(made.mlflow["run_id"]).data
    assert data.tags["ablate.verdict"] == made.verdict
    assert (data.tags["ablate.verdict.post"], data.tags["ablate.verdict.pre"]) == ("mixed", "baseline")
    assert (data.metrics["verdict/failures/post"], data.metrics["verdict/seeds/post"]) == (1, 5)
    parent = tracking.client().get_run(parents["post"]).data
    versus = compare_record(record)["post"].versus
    assert (parent.tags["ablate.verdict"], parent.tags["ablate.baseline"]) == ("mixed", "pre")
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
    compared = compare_record(build_record({"pre": PRE, "post": [None] * 5}))
    metrics = label_arm("post", "pre", compared["post"]).metrics
    assert (metrics["verdict/failures"], metrics["verdict/difference_seeds"]) == (5, 0)
    assert all(math.isnan(metrics[f"verdict/{name}"]) for name in ("mean_when_trained", "difference_low"))
    assert label_report("nothing yet", "pre", {}).metrics == {}


def test_any_arm_has_a_name_that_mlflow_takes():
    compared = compare_record(build_record({"pre": PRE, "<b> & é": BETTER}))
    assert "ablate.verdict._b_ _ _" in label_report("", "pre", compared).tags
