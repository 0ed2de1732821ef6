"""`ablate ui` in a real browser, on a finished sweep like the demo: parents, children and the compare page."""

import json
import re
import shutil
import socket
import subprocess
import sys
from urllib.parse import quote

import pytest
from rich.console import Console

from ablate.sweeping import run
from ablate.sweeping.spec import Sweep

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
def finished(store, tiny_settings):
    """A sweep with the demo's arms and search space, at a tiny size."""
    tree = {
        "name": "demo",
        "experiment": tiny_settings,
        "arms": {
            "pre": {"norm": "pre"},
            "post": {"norm": "post"},
            "mix": {"norm": "mix", "search": {"norm.alpha": [0.5, 1.0]}},
        },
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "budget": {"trials": 2},
    }
    return run.sweep(Sweep.from_tree(tree), workers=2, console=Console(quiet=True))


@pytest.fixture
def served(finished):
    """(address, experiment id) of `ablate ui` on that sweep."""
    port = free_port()
    command = [sys.executable, "-m", "ablate", "ui", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        link = None
        for line in process.stdout:
            link = link or re.search(r"demo: (http://127\.0\.0\.1:\d+)/#/experiments/(\d+)/runs", line)
            if "Ctrl-C" in line:
                break
        assert link
        yield link.groups()
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.browser
@needs_browser
def test_the_ui_shows_parents_children_and_the_comparison(finished, served):
    from playwright.sync_api import expect, sync_playwright

    address, experiment = served
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

        runs = quote(json.dumps([trial.run_id for trial in finished.trials["mix"]]))
        page.goto(f"{address}/#/compare-runs?runs={runs}&experiments={quote(json.dumps([experiment]))}")
        for shown in ("norm.alpha", "optimizer.lr", "val/loss"):
            expect(page.get_by_text(shown, exact=True).first).to_be_attached(timeout=60_000)
        text = page.inner_text("body")
        for trial in finished.trials["mix"]:
            assert str(trial.params["norm.alpha"]) in text
        browser.close()


@pytest.mark.usefixtures("store")
def test_a_port_that_is_taken_is_said(capsys):
    from ablate.cli import main

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["ui", "--port", str(port)]) == 2
    assert f"127.0.0.1:{port} cannot be used" in capsys.readouterr().err
