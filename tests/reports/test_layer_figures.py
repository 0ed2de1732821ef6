"""The layers of each arm's best trial in the report of a sweep."""

import html
import json
from dataclasses import replace

import pytest

from ablate import tracking
from ablate.diagnostics.run import diagnose
from ablate.reports.layer_figures import draw_layers
from ablate.reports.report import report
from ablate.sweeps.run import sweep
from ablate.sweeps.spec.sweep import Sweep

DIAGNOSE = {"what": ["angular", "gradients", "variance"], "interval": 4, "tokens": 64}


@pytest.fixture
def swept(store, tiny_settings):
    settings = {**tiny_settings, "trainer": {**tiny_settings["trainer"], "diagnose": DIAGNOSE}}
    arms = {"pre": {"norm": "pre"}, "lns": {"norm": "lns"}}
    tree = {"name": "small", "experiment": settings, "arms": arms, "search": {"optimizer.lr": [1e-3, 1e-2]}}
    sweep(Sweep.from_tree({**tree, "budget": {"trials": 1}}))
    return store


def test_they_are_on_the_page_and_after_ablate_diagnose_more_of_them(swept):
    made = report("small")
    names = {path.name for path in made.figures}
    assert {"layers-angular.png", "layers-gradients-gradient_norm.png", "layers-variance-variance.png"} <= names
    assert "layers-pruning.png" not in names
    assert (made.folder / "layers-angular.svg").exists()
    page = html.unescape((made.folder / "report.html").read_text())
    assert "Output variance of each layer: the best trial of each arm." in page
    assert "In training, of each layer: variance of the layer" in page

    found = diagnose([f"sweep:small/{arm}" for arm in ("pre", "lns")], ["pruning", "variance"], tokens=200)
    assert list(found.results["pruning"]) == ["pre", "lns"]
    assert "layers-pruning.png" in {path.name for path in report("small").figures}
    run = made.record.best("lns").run_id
    with open(tracking.client().download_artifacts(run, "layers/measured.json")) as file:
        stored = json.load(file)
    assert [row["loss_increase"] for row in stored["last"]["pruning"]["rows"]] == found.results["pruning"][
        "lns"
    ].column("loss_increase")


def test_without_measurements_there_are_none(record, tmp_path):
    run = tracking.Tracker.start("demo", "trial", {}).run_id
    trials = {arm: [replace(trial, run_id=run) for trial in trials] for arm, trials in record.trials.items()}
    assert draw_layers(replace(record, trials=trials), tmp_path) == {}
