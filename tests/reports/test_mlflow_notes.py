"""What the runs and the experiment of a sweep show in MLflow: the band of the confirmed seeds, the description."""

from dataclasses import replace

import pytest

from ablate import tracking
from ablate.reports import report as module

from .hand_built import add_curves, build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
POST = [2.05, 2.10, 2.06, 2.12, None]


def test_the_parent_has_the_band_once_and_the_experiment_the_verdict(tmp_path, monkeypatch, without_figures):
    record = add_curves(build_record({"pre": PRE, "p*st": POST}))
    parents = {arm: tracking.Tracker.start("judged", arm, {}).run_id for arm in ("pre", "p*st")}
    monkeypatch.setattr(module, "read_sweep", lambda title, storage: replace(record, parents=parents))
    made = module.report("judged", folder=tmp_path)
    module.report("judged", folder=tmp_path)
    client = tracking.client()
    metric = record.spec.objective.metric
    for name, value in {"mean": 2.126, "low": 2.10, "high": 2.16}.items():
        points = client.get_metric_history(parents["pre"], f"{metric}/{name}")
        assert [point.value for point in points][-1] == pytest.approx(value)
        assert len(points) == 2
    metrics = client.get_run(parents["pre"]).data.metrics
    assert metrics["verdict/mean_low"] < metrics["verdict/mean_when_trained"] < metrics["verdict/mean_high"]
    run = client.get_run(made.mlflow["run_id"])
    note = run.data.tags["mlflow.note.content"]
    plain = note.replace("\\", "")
    assert plain.startswith(f"**{made.summary}**\n")
    assert plain.index("](get-artifact") < plain.index(made.verdict) if made.figures else made.verdict in plain
    assert r"p\*st" in note
    assert f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts" in note
    assert client.get_experiment(run.info.experiment_id).tags["mlflow.note.content"] == note


def test_the_description_shows_the_figure_of_the_verdict():
    from pathlib import Path

    from ablate.reports.mlflow_notes import _pick_figure

    assert _pick_figure([Path("a/curves.png"), Path("a/verdict.png")]) == "verdict.png"
    assert _pick_figure([Path("a/layers-variance.png")]) == ""
