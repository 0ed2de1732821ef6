"""Runs of a command: how its values come back, how it ends, and that nothing of it lives on."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ablate import tracking
from ablate.config.errors import RunFailed
from ablate.experiment.tree import build_experiment
from ablate.training import commands, guard
from ablate.training.external import run_external
from ablate.training.procedures import Hooks, Place

HEAD = "import json, os, sys, time\n"
JSON_LINES = """
print('starting {not json')
for step in (1, 2, 3):
    print(json.dumps({"step": step, "loss": 1 / step, "lr": 0.1, "name": "x"}), flush=True)
print(json.dumps({"done": True}))
"""


@pytest.fixture
def run(store, tmp_path):
    """run(script, **fields): the result of a command that runs a Python script, and what was reported meanwhile."""

    def start(script, metrics=("loss",), decide=None, asked_to_stop=None, run_id=None, **fields):
        file = tmp_path / "script.py"
        file.write_text(HEAD + script)
        line = fields.pop("run", f"{sys.executable} -I -S {file} {{seed}}")
        experiment = build_experiment({"kind": "command", "run": line, **fields})
        seen, start.begun = {}, []

        def note(step, values):
            seen[step] = dict(values)
            return decide is None or decide(step, values)

        def begin(run_id, *rest):
            start.begun.append(run_id)

        hooks = Hooks(begin, decide=note, asked_to_stop=asked_to_stop, metrics=metrics)
        return run_external(experiment, Place(run_id=run_id), hooks), seen

    return start


def find_artifact(run_id, name):
    return Path(tracking.client().download_artifacts(run_id, name)).read_text()


def test_the_last_json_line_with_the_metric_counts(run):
    result, seen = run(JSON_LINES, seed=3)
    assert (result.status, result.step) == ("completed", 3)
    assert result.metrics == {"loss": pytest.approx(1 / 3), "lr": 0.1}
    assert {step: values["loss"] for step, values in seen.items()} == {1: 1, 2: 1 / 2, 3: 1 / 3}
    found = tracking.client().get_run(result.run_id)
    assert (found.data.tags["ablate.seed"], found.data.tags["ablate.status"]) == ("3", "completed")
    assert found.data.tags["ablate.command"].endswith("script.py 3")
    history = tracking.client().get_metric_history(result.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 1), (2, 1 / 2), (3, 1 / 3)]
    assert "starting {not json" in find_artifact(result.run_id, "stdout.txt")


WRITE = "open(os.environ['ABLATE_RUN_FOLDER'] + '/r', 'w')"
PATTERN = r"step (?P<step>\d+): val loss (?P<value>\S+)"


@pytest.mark.parametrize(
    ("script", "result", "value", "steps"),
    [
        ("print('{\"a\": {\"loss\": 2.5}}')", "json", None, 0),
        ('print(\'{"loss": "1e-3"}\')', "json", 1e-3, 0),
        ('print(\'{"epoch": 4, "loss": 2}\')', {"step": "epoch"}, 2.0, 1),
        ('print(\'{"loss": 2}\\r{"loss": 3}\', end="")', "json", 3.0, 0),
        ("print('step 1: val loss 3.5\\nstep 2: val loss 2.5')", {"kind": "regex", "pattern": PATTERN}, 2.5, 2),
        ("print('loss=2.25', file=sys.stderr)", {"kind": "regex", "pattern": r"loss=(\S+)"}, 2.25, 0),
        (f"{WRITE}.write('4.5\\n')", {"kind": "file", "path": "r"}, 4.5, 0),
        (
            f"json.dump({{'loss': 1.5, 'x': [1]}}, {WRITE}, indent=2)",
            {"kind": "file", "path": "r"}, 1.5, 0,
        ),
        (
            WRITE + """.write('{"step": 1, "loss": 3}\\n{"step": 2, "loss": 2}')""",
            {"kind": "file", "path": "r"}, 2.0, 1,
        ),
    ],
)  # fmt: skip
def test_a_value_comes_back_by_a_line_a_pattern_or_a_file(run, script, result, value, steps):
    if value is None:
        with pytest.raises(RunFailed, match=r"no value of loss was found: .* It has a\.loss\."):
            run(script, result=result)
        return
    found, seen = run(script, result=result)
    assert (found.status, found.metrics["loss"]) == ("completed", value)
    assert len(seen) in (steps, steps + 1 if steps else 0)  # lines after the last look are values, and no points


def test_a_value_comes_back_by_the_runs_own_mlflow_run(run, monkeypatch):
    monkeypatch.setattr(commands, "LOOK", 0.0)
    script = """
import sqlite3, pathlib
pathlib.Path(os.environ["ABLATE_RUN_FOLDER"], "seen").write_text(
    os.environ["MLFLOW_RUN_ID"] + " " + os.environ["MLFLOW_TRACKING_URI"])
time.sleep(0.3)
"""

    def log(step, value):
        tracking.client().log_metric(run.begun[0], "loss", value, step=step)

    polled = iter([lambda: log(1, 3.0), lambda: log(2, 2.0)])

    def stop():
        next(polled, lambda: None)()
        return False

    result, seen = run(script, result="mlflow", asked_to_stop=stop)
    assert (result.status, result.metrics, result.step) == ("completed", {"loss": 2.0}, 2)
    assert seen[1] == {"loss": 3.0}
    folder = tracking.store_path() / "runs" / result.run_id
    assert (folder / "seen").read_text() == f"{result.run_id} {tracking.tracking_uri()}"
    assert len(tracking.client().get_metric_history(result.run_id, "loss")) == 2  # nothing is logged twice


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("print('no luck'); sys.exit(3)", "exit status 3"),
        ("import of_nobody  # print('no luck')", "exit status 1: ModuleNotFoundError: No module named 'of_nobody'"),
        ("os.kill(os.getpid(), 9)", "ended by signal 9"),
        ("print('{\"loss\": NaN}'); sys.exit(1)", "exit status 1, after loss nan: a command that diverged"),
        ("print('hello')", "no value of loss was found: looked for the last line of stdout that is a JSON object"),
        ("", "no value of loss"),
        ("print('{\"loss\": true}')", "no value of loss"),
        ('print(\'{"loss": "low"}\')', "no value of loss"),
        ("print('{\"loss\": [1]}')", "no value of loss"),
    ],
)
def test_a_run_without_an_outcome_fails_with_its_output(run, script, message):
    with pytest.raises(RunFailed) as error:
        run(script)
    assert message in str(error.value)
    assert ("no luck" in error.value.details) == ("no luck" in script)
    (run_id,) = run.begun
    assert tracking.client().get_run(run_id).data.tags["ablate.status"] == "failed"


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "null", '"nan"'])
def test_a_value_that_is_not_finite_is_a_divergence(run, value):
    result, _ = run(f'print(\'{{"step": 1, "loss": 2.0}}\\n{{"step": 2, "loss": {value}}}\')')
    assert (result.status, result.metrics) == ("diverged", {})
    assert result.reason.startswith("loss ")


def test_the_time_limit_is_a_failure(run):
    begin = time.monotonic()
    with pytest.raises(RunFailed, match="longer than the time limit of"):
        run("print('{\"loss\": 1}', flush=True)\ntime.sleep(60)", time_limit=0.5)
    assert time.monotonic() - begin < 20


def test_a_pruned_and_a_stopped_command_end_at_once(run):
    endless = 'print(\'{"step": 5, "loss": 1.0}\', flush=True)\ntime.sleep(60)'
    result, _ = run(endless, decide=lambda step, values: False)
    assert (result.status, result.reason, result.metrics) == ("pruned", "pruned at step 5", {"loss": 1.0})
    result, _ = run(endless, asked_to_stop=lambda: True)
    assert result.status == "interrupted"


def test_a_run_that_begins_again_has_its_folder_and_reads_only_what_is_new(run):
    script = """
folder = os.environ["ABLATE_RUN_FOLDER"]
again = os.path.exists(folder + "/state")
open(folder + "/state", "w").close()
if not again:
    print('{"step": 1, "loss": 7}', flush=True)
    time.sleep(60)
print(json.dumps({"again": 1, "loss": 2, "seed": int(os.environ["ABLATE_SEED"])}))
"""
    seen = []
    first, _ = run(script, seed=4, asked_to_stop=lambda: bool(seen), decide=lambda *given: seen.append(1) or True)
    assert first.status == "interrupted"
    second, _ = run(script, seed=4, run_id=first.run_id)
    assert (second.status, second.run_id) == ("completed", first.run_id)
    assert second.metrics == {"again": 1, "loss": 2, "seed": 4}
    kept = find_artifact(first.run_id, "stdout.txt")
    assert "7" in kept
    assert "again" in kept


def test_environment_and_folder_are_those_of_the_file(run, tmp_path):
    (tmp_path / "inner").mkdir()
    script = "print(json.dumps({'loss': float(os.environ['X']), 'y': float(len(os.getcwd()))}))"
    result, _ = run(script, settings={"x": 2.5}, env={"X": "{x}"}, cwd=str(tmp_path / "inner"))
    assert result.metrics == {"loss": 2.5, "y": len(str(tmp_path / "inner"))}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"run": "no-such-program {seed}"}, "run: there is no such program, or it is not executable"),
        ({"run": "./no-such-program"}, "run: there is no such program"),
        ({"run": "python3 x.py", "cwd": "/no/such"}, "cwd: there is no such folder"),
        ({"run": "ls {seed}"}, ""),
    ],
)
def test_a_missing_program_or_folder_is_found_before_the_first_run(fields, problem):
    found = commands.DRIVER.check(build_experiment({"kind": "command", **fields}))
    assert problem in " ".join(map(str, found))
    assert bool(found) == bool(problem)


def test_files_that_the_command_names_are_its_inputs(store, tmp_path):
    (tmp_path / "t.py").write_text("1")
    one = build_experiment({"kind": "command", "run": "python3 t.py {seed}", "cwd": str(tmp_path)})
    (before,) = commands.DRIVER.fingerprint(one).items()
    (tmp_path / "t.py").write_text("22")
    (after,) = commands.DRIVER.fingerprint(one).items()
    assert before[0] == after[0] == "file t.py"
    assert before[1] != after[1]


def is_alive(pid):
    """Whether a process runs; one that ended and waits to be collected does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_end(pid):
    for _ in range(400):
        if not is_alive(pid):
            return True
        time.sleep(0.025)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
@pytest.mark.parametrize("deaf", [False, True])
def test_a_killed_workers_command_does_not_live_on(tmp_path, deaf):
    """Nor its own child: the guard ends their process group when the pipe of the worker closes."""
    file = tmp_path / "pids"
    script = (
        f"import os, signal, subprocess, sys, time\n"
        f"{'signal.signal(signal.SIGTERM, signal.SIG_IGN)' if deaf else ''}\n"
        f"child = subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(90)'])\n"
        f"open({str(file)!r} + '.new', 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        f"os.rename({str(file)!r} + '.new', {str(file)!r})\n"
        f"time.sleep(90)\n"
    )
    worker = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-I', '-S', {guard.__file__!r}, '0.2', sys.executable, '-I', '-S', '-c',\n"
        f"    {script!r}], stdin=subprocess.PIPE, start_new_session=True)\n"
        "time.sleep(90)\n"
    )
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", worker])
    while not file.exists():
        time.sleep(0.02)
        assert process.poll() is None
    pids = [int(word) for word in file.read_text().split()]
    assert all(map(is_alive, pids))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert all(map(await_end, pids))


def test_a_program_that_cannot_be_started_is_told(run, tmp_path):
    file = tmp_path / "broken"
    file.write_text("#!/no/such/interpreter\n")
    file.chmod(0o755)
    with pytest.raises(RunFailed) as error:
        run("", run=f"{file}")
    assert str(error.value).startswith(f"exit status {guard.MISSING}: ")
    assert "cannot be started: No such file or directory" in str(error.value)


def test_a_large_output_is_kept_at_its_end(run, monkeypatch):
    monkeypatch.setattr(commands, "MOST_LOGGED", 100)
    result, _ = run("print('a' * 500)\nprint('{\"loss\": 1}')")
    text = find_artifact(result.run_id, "stdout.txt")
    assert text.startswith("[the first 413 bytes are left out]")
    assert text.endswith('{"loss": 1}\n')
    assert json.loads(text.splitlines()[-1]) == {"loss": 1}
    assert math.isfinite(result.seconds)
