"""The layers of each arm's best trial in the report of a sweep."""

import html
import json
from dataclasses import replace

import pytest
from run_table import by_arm, put

from ablate import tracking
from ablate.diagnostics.run import diagnose
from ablate.experiment.tree import Experiment
from ablate.reports.layer_figures import draw_layers
from ablate.reports.report import report
from ablate.training.train import train

DIAGNOSE = {"what": ["angular", "gradients", "variance"], "interval": 4, "tokens": 64}


ARMS = {"pre": {"norm": "pre"}, "lns": {"norm": "lns"}}


@pytest.fixture
def swept(writer, tiny_settings):
    """The sweep `small`: a trial of each of two arms, trained with measurements."""
    settings = {**tiny_settings, "trainer": {**tiny_settings["trainer"], "diagnose": DIAGNOSE}}
    tree = {"name": "small", "experiment": settings, "arms": ARMS, "search": {"optimizer.lr": [1e-3, 1e-2]}}
    sweep = writer({**tree, "budget": {"trials": 1}})
    for arm, own in ARMS.items():
        run = train(Experiment.from_mapping(settings, {**own, "optimizer.lr": 1e-3}))
        sweep.add(arm, {"optimizer.lr": 1e-3}, 3.0, run_id=run.run_id, step=12)


def test_they_are_on_the_page_and_after_ablate_diagnose_more_of_them(swept, tmp_path, without_figures):
    made = report("small", log=False)
    names = {path.name for path in made.figures}
    assert {"layers-angular.png", "layers-gradients-gradient_norm.png", "layers-variance-variance.png"} <= names
    assert "layers-pruning.png" not in names
    assert (made.folder / "layers-angular.svg").exists()
    page = html.unescape((made.folder / "report.html").read_text())
    assert "Output variance of each layer: the best trial of each arm." in page
    assert "During training, for each layer: variance of the layer" in page

    diagnosis = diagnose([f"sweep:small/{arm}" for arm in ARMS], ["pruning", "variance"], tokens=200)
    assert list(diagnosis.results["pruning"]) == list(ARMS)
    assert "layers-pruning" in {figure.name for figure in draw_layers(made.record)}
    run = made.record.best("lns").run_id
    with open(tracking.client().download_artifacts(run, "layers/measured.json")) as file:
        stored = json.load(file)
    increases = [row["loss_increase"] for row in stored["last"]["pruning"]["rows"]]
    assert increases == diagnosis.results["pruning"]["lns"].column("loss_increase")


def test_without_measurements_there_are_none(record, tmp_path):
    run = tracking.Tracker.start("demo", "trial", {}).run_id
    trials = {arm: [replace(trial, run_id=run) for trial in trials] for arm, trials in by_arm(record).items()}
    assert draw_layers(put(record, trials=trials)) == []
