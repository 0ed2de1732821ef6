"""`ablate ui` in a real browser, on a finished sweep like the demo: parents, children and the compare page."""

import json
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
from dataclasses import replace
from urllib.parse import quote

import optuna
import pytest
from mlflow.exceptions import MlflowException
from run_table import by_arm

from ablate import tracking
from ablate.cli import ui
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.sweeps.spec.parts import Confirm
from ablate.sweeps.spec.sweep import Sweep

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt-get install chromium)")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def finished(swept):
    """The record of the sweep `demo`."""
    return read_sweep("demo")


@pytest.fixture
def served(finished):
    """(address, experiment id, link) of `ablate ui` on that sweep."""
    port = free_port()
    command = [sys.executable, "-m", "ablate", "ui", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        link = None
        for line in process.stdout:
            link = link or re.search(r"demo: (http://127\.0\.0\.1:\d+)/#/experiments/(\d+)/runs.*", line)
            if "Ctrl-C" in line:
                break
        assert link
        yield *link.groups(), link.group().removeprefix("demo: ")
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.browser
@needs_browser
def test_the_ui_shows_parents_children_and_the_comparison(finished, served):
    from playwright.sync_api import expect, sync_playwright

    address, experiment, link = served
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(60_000)
        page.goto(f"{address}/#/experiments/{experiment}/runs")
        for arm in ("pre", "post", "mix"):
            expect(page.get_by_role("link", name=arm, exact=True)).to_be_visible(timeout=60_000)
        child = page.get_by_role("link", name="mix #0", exact=True)
        expect(child).not_to_be_visible()  # children are folded into their parents
        for button in page.locator("button:not([aria-label]):not([data-testid])").all():
            if not button.inner_text():  # the "+" of a parent has no name
                button.click()
        expect(child).to_be_visible()

        runs = quote(json.dumps([trial.run_id for trial in finished.search("mix")]))
        page.goto(f"{address}/#/compare-runs?runs={runs}&experiments={quote(json.dumps([experiment]))}")
        for shown in ("norm.alpha", "optimizer.lr", "val/loss"):
            expect(page.get_by_text(shown, exact=True).first).to_be_attached(timeout=60_000)
        text = page.inner_text("body")
        for trial in finished.search("mix"):
            assert str(trial.params["norm.alpha"]) in text

        page = browser.new_page(viewport={"width": 1600, "height": 1000})  # without what the other one remembers
        page.set_default_timeout(60_000)
        page.goto(link)
        for column in ("val/loss", "seed", "optimizer.lr", "norm.alpha"):
            expect(page.get_by_role("columnheader", name=column).first).to_be_visible(timeout=60_000)
        expect(page.get_by_text("Evaluation runs")).to_have_count(0)  # of language-model applications
        expect(page.get_by_text("Group: ")).to_have_count(0)
        heights = {}
        for trial in (t for trials in by_arm(finished).values() for t in trials if t.value is not None):
            name = page.get_by_role("link", name=f"{trial.arm} #{trial.number}", exact=True)
            heights[trial.value] = name.bounding_box()["y"]
        assert [heights[value] for value in sorted(heights)] == sorted(heights.values())  # the best is on top
        browser.close()


@pytest.fixture
def experiments(store):
    """The client of a store with the experiments `old`, `train` and `demo`; the sweep `demo` maximises."""
    client = tracking.client()
    for name in ("old", "train", "demo"):
        tracking.ensure_experiment(name)
        with sqlite3.connect(store / "mlflow.db") as database:
            now = ("old", "train", "demo").index(name) + 1
            database.execute("UPDATE experiments SET creation_time = ? WHERE name = ?", (now, name))
        database.close()
    tree = {
        "name": "demo",
        "experiment": {"model": "vit"},
        "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.5, 1.0]}}},
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "objective": {"metric": "val/accuracy", "direction": "maximize"},
        "budget": {"trials": 2},
    }
    study = optuna.create_study(study_name="demo@1/pre", storage=open_storage(storage_url()))
    study.set_user_attr("spec", Sweep.from_tree(tree).to_tree())
    return client


@pytest.mark.usefixtures("experiments")
def test_the_view_of_a_sweep_has_its_best_trial_first_and_what_it_searches():
    ((name, view),) = ui.build_views("demo").items()
    assert (name, view["orderByKey"], view["orderByAsc"]) == ("search", "metrics.`val/accuracy`", False)
    assert view["selectedColumns"] == [
        "metrics.`val/accuracy`",
        "params.`seed`",
        "params.`optimizer.lr`",
        "params.`norm.alpha`",
        "tags.`ablate.outcome`",
        "tags.`ablate.status`",
    ]
    assert "groupBy" not in view
    *settings, course = view["compareRunCharts"]  # pre has no alpha, and so none of its runs is in the second
    assert [chart["selectedParams"] for chart in settings] == [["optimizer.lr"], ["optimizer.lr", "norm.alpha"]]
    assert {chart["selectedMetrics"][0] for chart in settings} == {course["metricKey"]} == {"val/accuracy"}
    assert {chart["metricSectionId"] for chart in view["compareRunCharts"]} <= {
        section["uuid"] for section in view["compareRunSections"]
    }


@pytest.mark.usefixtures("experiments")
def test_the_view_of_single_runs_has_the_newest_first():
    view = ui.build_views("train")["runs"]
    assert (view["orderByKey"], view["orderByAsc"]) == ("attributes.start_time", False)
    assert {"params.`optimizer.lr`", "params.`seed`", "tags.`ablate.loss`"} <= set(view["selectedColumns"])
    assert "groupBy" not in view


def test_links_stand_newest_first_and_open_the_stored_view(experiments):
    links = ui._find_links(experiments)
    assert list(links) == ["demo", "train", "old"]
    demo = experiments.get_experiment_by_name("demo")
    assert (
        links["demo"]
        == f"#/experiments/{demo.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey=ablate-search"
    )
    saved = json.loads(demo.tags["mlflow.sharedViewState.ablate-search"])
    assert json.loads(saved["state"]) == ui.build_views("demo")[saved["name"]]


def test_a_store_that_may_not_be_written_has_plain_links(experiments, monkeypatch):
    def refuse(*_):
        raise MlflowException("Permission denied")

    monkeypatch.setattr(experiments, "set_experiment_tag", refuse)
    assert all(link.endswith("/runs?workflowType=machine_learning") for link in ui._find_links(experiments).values())


@pytest.mark.usefixtures("store")
def test_a_port_that_is_taken_is_said(capsys):
    from ablate.cli import main

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["ui", "--port", str(port)]) == 2
    assert f"127.0.0.1:{port} cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(("view", "names"), [
    ("arms", ["pre", "mix", "pre seed 1", "mix seed 1", "mix seed 2"]),  # in the order of the file; the UI nests them
    ("fresh seeds", ["mix seed 1", "mix seed 2", "pre seed 1"]),
    ("search", ["mix #0", "pre #0"]),
])  # fmt: skip
def test_a_view_has_the_runs_of_its_name_and_no_others(experiments, monkeypatch, view, names):
    """Asked of MLflow with the filter and the order that its UI would send. The best of a search is not among the
    fresh seeds."""
    record = read_sweep("demo")
    spec = record.spec.model_copy(update={"confirm": Confirm(seeds=3)})
    monkeypatch.setattr(ui.storage, "read_sweep", lambda title: replace(record, spec=spec))
    number = experiments.get_experiment_by_name("demo").experiment_id
    roles = {"pre": "arm", "mix": "arm", "pre #0": "trial", "mix #0": "trial", "mix beyond": "extension"}
    roles |= {"mix #0 seed 9": "selection", "mix #1 seed 9": "challenge", "report": "report"}
    roles |= dict.fromkeys(["pre seed 1", "mix seed 1", "mix seed 2"], "confirmation")
    for at, (name, role) in enumerate(roles.items(), 1):
        experiments.create_run(number, start_time=at, run_name=name, tags={"ablate.role": role})
    views = ui.build_views("demo")
    assert next(iter(views)) == "arms"
    assert views[view]["selectedColumns"][0] == "metrics.`val/accuracy`"
    assert "groupBy" not in views[view]
    order = f"{views[view]['orderByKey']} {'ASC' if views[view]['orderByAsc'] else 'DESC'}"
    found = experiments.search_runs([number], views[view]["searchFilter"], order_by=[order])
    assert [run.info.run_name for run in found] == names
