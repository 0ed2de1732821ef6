"""A name of an arm that is accepted survives every step: the sweep, a kill, the report, the ladder, the terminal."""

import io
import json
from importlib.util import find_spec

import pytest
import yaml
from rich.console import Console
from run_table import by_arm
from scheduler.small import run_here

from ablate import tracking
from ablate.cli import main
from ablate.config.errors import ConfigError
from ablate.plots.drawing import draw
from ablate.plots.figure import Entry, Panel, plot
from ablate.scheduler.preparation import begin_session
from ablate.scheduler.progress import Display, Running
from ablate.scheduler.storage import read_sweep, storage_url
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.fields import MOST_LETTERS
from ablate.sweeps.spec.sweep import Sweep

NAMES = [
    "it's", 'a "quoted" one', "it's \"both\"", "back`tick`", "per%cent _ like", "a\\b", "$a$b", r"$\frac$", "_hidden",
    "[bold]", "[red]x", ":smile:", "<script>alert(1)<b>", "..", "-x", "a=b", "a: b #c", "naïve \N{SNOWMAN}",
    " x ", "null", "x" * MOST_LETTERS,
]  # fmt: skip
TOGETHER = [
    "it's \"both\" back`tick` per%cent _ like a\\b", r"$a$b $\frac$ [red]x :smile:",
    "<script>alert(1)<b> a=b a: b #c naïve \N{SNOWMAN}", "_hidden", "[bold]", "..", "-x",
    " x ", "null", "x" * MOST_LETTERS,
]  # fmt: skip
"""The same in fewer names, those apart in which it matters what a name begins with."""
REFUSED = ["", " ", "a/b", "a@1", "a\nb", "a\0b", "\ud800", "x" * (MOST_LETTERS + 1)]


def build(tiny_settings, names, **more):
    """A sweep of one trial and two fresh seeds for each arm."""
    return {
        "name": "named",
        "experiment": {
            **tiny_settings,
            "trainer": {**tiny_settings["trainer"], "max_steps": 2, "val_check_interval": 2},
            "schedule": {"warmup_steps": 1},
        },
        "arms": {name: {"norm": "mix", "norm.alpha": 0.3 + 0.01 * i} for i, name in enumerate(names)},
        "search": {"optimizer.lr": [1e-3]},
        "sampler": "grid",
        "factor": "norm",
        **more,
    }


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_what_is_no_name_is_refused(tiny_settings, name):
    with pytest.raises(ConfigError, match=r"arms: the name of an arm must have 1 to 200 printable characters"):
        Sweep.from_tree(build(tiny_settings, ["pre", name]))


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_run_that_a_killed_sweep_has_begun_is_found(store, name):
    tags = {"ablate.arm": name, "ablate.trial": "3", "mlflow.parentRunId": "f" * 32}
    assert tracking.find_run("named", tags) is None
    tracking.Tracker.start("named", "another", {**tags, "ablate.arm": f"{name}'"})
    first, second = (tracking.Tracker.start("named", name, tags).run_id for _ in range(2))
    assert tracking.find_run("named", tags) in (first, second)
    assert tracking.find_run("named", {**tags, "ablate.trial": "4"}) is None


def test_a_whole_sweep(store, tiny_settings, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "named.yaml"
    file.write_text(
        yaml.safe_dump(
            build(tiny_settings, TOGETHER, confirm={"seeds": 1, "candidates": 1}), allow_unicode=True, sort_keys=False
        )
    )
    assert main(["sweep", str(file), "--workers", "2"]) == 0, capsys.readouterr().err
    assert main(["sweep", str(file)]) == 0  # once more: it is done
    assert "Traceback" not in capsys.readouterr().err
    record = read_sweep("named")
    assert list(by_arm(record)) == TOGETHER
    assert {t.status for trials in by_arm(record, FRESH).values() for t in trials} == {"completed"}
    assert main(["report", "named", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["arms"]) == set(TOGETHER)
    page = (store / "reports" / "named" / "report.html").read_text()
    assert "<script>alert(1)" not in page
    assert main(["status", "named"]) == 0
    assert "[red]x" in capsys.readouterr().out
    for i in (0, 4) if find_spec("ablate.addons") else ():
        words = ["--to", "safetensors", "--output", str(tmp_path / f"out{i}")]
        assert main(["export", f"sweep:named/{TOGETHER[i]}", *words]) == 0


def test_a_kill_between_the_run_and_its_note(store, tiny_settings, monkeypatch):
    """The trial that goes on takes up the run that it had begun in MLflow."""
    spec = Sweep.from_tree(build(tiny_settings, ["it's", 'and "both"']))
    asked = []
    find = tracking.find_run
    queue, _ = begin_session(spec, storage_url(), False, 1)
    for task in (queue.take(), queue.take()):
        tags = {"ablate.sweep": "named", **task.tags}
        tracking.Tracker.start("named", task.label, tags, task.parent)
        task.note("owner", {**task.owner, "started": "earlier"})  # the process has ended
    monkeypatch.setattr(tracking, "find_run", lambda *given: asked.append(find(*given)) or asked[-1])
    run_here(spec)
    trials = [trial for trials in by_arm(read_sweep("named")).values() for trial in trials]
    assert [(trial.status, trial.reason) for trial in trials] == [("completed", "")] * 2
    assert asked == [trial.run_id for trial in trials]


def test_the_live_table_shows_names_as_they_are():
    console = Console(file=io.StringIO(), force_terminal=True, width=300)
    with Display(console, "val/loss", 1) as display:
        for i, name in enumerate(NAMES):
            trial = Running(f"{name} #0", f"{name}=1", 10)
            display.show_start(i, trial)
            display.best = f"{name} 3.2"
            display.show_verdict(f"Verdict so far: {name} better")
            display.refresh()
            display.show_end(i, trial, "completed", 1.0)
    assert "[red]x #0" in console.file.getvalue()
    assert ":smile: #0" in console.file.getvalue()
    shown = console.file.getvalue()
    assert shown.index("Verdict so far") < shown.index("best of each search so far, one seed each (optimistic)")


def test_figures_take_names_for_text():
    drawn, _ = draw(plot("names", NAMES[0], Panel([]), entries=[Entry(name, "#000000") for name in NAMES[:14]]))
    drawn.draw_without_rendering()  # which raises for what is no mathematics
    assert [text.get_text().strip() for text in drawn.legends[0].get_texts()] == NAMES[:14]
