"""`report` from end to end: numbers, files, MLflow, and what happens where something is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ablate import tracking
from ablate.config.errors import StoreError, SweepError
from ablate.reports.report import Report, assemble, report
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.parts import Scale


def test_the_best_of_each_arm_is_the_one_found_by_hand(made: Report, expected_loss: Callable[..., float]) -> None:
    arms = made.to_dict()["arms"]
    assert arms["pre"]["best"]["params"] == {"optimizer.lr": 8e-4}
    assert arms["pre"]["best"]["value"] == expected_loss("pre", 8e-4) == 1.735
    assert (arms["post"]["best"]["trial"], arms["post"]["best"]["value"]) == (2, 1.82)
    assert arms["mix"]["best"] == {
        "trial": 3,
        "params": {"optimizer.lr": 8e-4, "norm.alpha": 0.25},
        "value": 1.712,
        "metrics": {"val/loss": 1.712, "val/perplexity": math.exp(1.712), "val/bits_per_byte": 1.712 / 2.9},
        "run_id": "run-mix-3",
        "step": 200,
        "seconds": 64.5,
    }


def test_every_status_is_counted(made: Report) -> None:
    arms = made.to_dict()["arms"]
    mix = {"completed": 6, "running": 0, "pruned": 1, "diverged": 1, "failed": 1, "interrupted": 1, "waiting": 0}
    assert arms["mix"]["counts"] == mix
    assert arms["post"]["counts"]["diverged"] == 3
    assert [arm["target"] for arm in arms.values()] == [8, 8, 8]


def test_the_dictionary_survives_json_and_is_on_disk(made: Report) -> None:
    plain = made.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert json.loads((made.folder / "report.json").read_text()) == plain
    assert len(plain["trials"]) == 8 + 8 + 10  # of ten attempts of mix one was continued, another is its continuation
    diverged = next(t for t in plain["trials"] if t["arm"] == "post" and t["number"] == 5)
    assert diverged["curve"][-1] == [100, None]
    assert diverged["metrics"] == {"val/loss": None}
    assert diverged["value"] is None


def test_the_figures_are_images_of_the_promised_size(made: Report, demo_store: Path) -> None:
    assert [path.name for path in made.figures] == ["learning_rate.png", "alpha.png", "curves.png"]
    for path in made.figures:
        assert path.parent == demo_store / "reports" / "demo"
        with Image.open(path) as image:
            image.verify()
            assert image.format == "PNG"
            assert image.size == (1050, 675)


def test_the_record_stands_for_its_name(demo: Any) -> None:
    assert report(read_sweep("demo"), write=False).record.title == "demo"
    with pytest.raises(TypeError, match="give the name of a sweep, such as 'demo', not a int"):
        report(3, write=False)  # type: ignore[arg-type]


def test_a_report_and_a_record_are_one_line_in_a_notebook(made: Report) -> None:
    assert repr(made) == f"<Report demo: {made.summary}>"
    assert "\n" not in repr(made.record)
    assert repr(made.record).startswith("<SweepRecord demo: 3 arms, ")


def test_two_reports_are_one_run_in_mlflow(demo: Any) -> None:
    first, second = report("demo"), report("demo")
    client = tracking.client()
    runs = client.search_runs([tracking.ensure_experiment("demo")])
    assert [run.info.run_name for run in runs] == ["report"]
    assert runs[0].info.run_id == first.mlflow["run_id"] == second.mlflow["run_id"]
    assert runs[0].info.status == "FINISHED"
    assert runs[0].data.tags["ablate.role"] == "report"
    artifacts = {file.path for file in client.list_artifacts(runs[0].info.run_id)}
    assert artifacts == {
        "learning_rate.png",
        "learning_rate.svg",
        "alpha.png",
        "curves.png",
        "report.html",
        "report.json",
        "table.txt",
    }
    assert second.mlflow["experiment"] == "demo"
    assert second.mlflow["experiment_id"] == runs[0].info.experiment_id
    assert second.mlflow["parents"] == {arm: f"parent-of-{arm}" for arm in ("pre", "post", "mix")}


def test_a_later_generation_has_a_report_of_its_own(demo: Any, spec: Any, writer: Any, without_figures: None) -> None:
    writer(spec, generation=2).add("pre", {"optimizer.lr": 1e-3}, 1.9)
    assert report("demo", log=False).folder.name == "demo@2"
    assert report("demo@1", log=False).to_dict()["arms"]["pre"]["best"]["value"] == 1.735


def test_mlflow_that_does_not_answer_leaves_the_report(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> str:
        raise StoreError("The MLflow store http://nowhere cannot be used.")

    monkeypatch.setattr(tracking, "ensure_experiment", away)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@nowhere:5000")
    made = report("demo")
    assert any("http://nowhere cannot be used" in note for note in made.notes)
    assert made.mlflow["run_id"] is None
    written = (made.folder / "report.json").read_text()
    assert json.loads(written) == made.to_dict()
    assert "secret" not in written + (made.folder / "table.txt").read_text()
    assert "cannot be used" in (made.folder / "table.txt").read_text()
    assert all(path.exists() for path in made.figures)


def test_an_unknown_sweep_is_named_with_a_suggestion(demo: Any) -> None:
    with pytest.raises(SweepError, match=r"There is no sweep 'dmeo'.*Did you mean demo\?"):
        report("dmeo", log=False)


def test_a_sweep_without_results_says_so(spec: Any, writer: Any) -> None:
    sweep = writer(spec)
    sweep.add("pre", {"optimizer.lr": 1e-3}, status="failed", reason="RuntimeError: CUDA out of memory")
    made = report("demo", log=False)
    assert made.verdict == "No trial has completed yet, so there is nothing to compare."
    assert made.figures == []
    assert all(arm["best"] is None for arm in made.to_dict()["arms"].values())
    assert any("pre has 0 of 8, post has 0 of 8 and mix has 0 of 8" in note for note in made.notes)
    assert "CUDA out of memory" in made.table()


def test_a_folder_that_cannot_be_written_is_explained(demo: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot be written to .*file.*Choose another folder"):
        report("demo", log=False, folder=tmp_path / "file" / "below")


def test_of_a_store_that_can_only_be_read_the_report_is_told_and_written_elsewhere(
    demo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_figures: None
) -> None:
    def refuse(*_: Any) -> Any:
        raise StoreError("Results cannot be written to here.")

    monkeypatch.setattr("ablate.tracking.open_store", refuse)
    monkeypatch.setattr("ablate.tracking.open_folder", refuse)
    made = report("demo", log=False)
    assert made.notes[-1] == (
        "No files were written. Results cannot be written to here. Or choose a folder: --output FOLDER."
    )
    assert not made.folder.exists()
    elsewhere = report("demo", log=False, folder=tmp_path / "elsewhere")
    assert elsewhere.verdict == made.verdict
    assert (tmp_path / "elsewhere" / "report.html").exists()


def test_a_report_of_less_than_the_full_setting_says_so_everywhere(
    full: SweepRecord, made_of_full: Report, tmp_path: Path, without_figures: None
) -> None:
    scale = Scale(factor=0.1, model=True, max_steps=3000, items=6_144_000, parameters=10**7)
    small = replace(full, spec=full.spec.model_copy(update={"scale": scale}))
    made, whole = assemble(small, tmp_path), made_of_full
    told = "Not the full setting (--scale 0.1 --scale-model): a trial has 300 of 3,000 updates"
    assert told in " ".join(made.table().split())
    assert told in made.page()
    assert made.to_dict()["scale"]["told"].startswith(told)
    assert made.to_dict()["scale"]["parameters"] == 10**7
    assert "Not the full setting" not in whole.table() + whole.page()
    assert whole.to_dict()["scale"] is None
