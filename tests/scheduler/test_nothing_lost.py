"""A sweep that is killed again and again, at random moments, ends as the one that nobody disturbed."""

import contextlib
import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from forked import Forked, read_parents
from rich.console import Console
from run_table import by_arm

from ablate import tracking
from ablate.scheduler import run
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.spec.sweep import Sweep

SEEDS = [int(seed) for seed in os.environ.get("ABLATE_TEST_SEEDS", "0").split(",")]
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc")


def tree(settings, name):
    return {
        "name": name,
        "experiment": settings,
        "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.5, 1.0]}}},
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "sampler": {"kind": "tpe", "n_startup_trials": 1},
        "budget": {"trials": 2},
        "confirm": {"seeds": 1, "selection_seeds": 1},
    }


def moments(seed, kills):
    """Who is killed, after how many further lines of output, and how many seconds later. No two workers in a row: a
    trial whose worker dies again and again counts as failed."""
    chosen = random.Random(seed)
    workers = chosen.sample([1, 3, 5, 7, 9], 3)
    for i in range(kills):
        lines = chosen.choice([0, 1, 1, 1, 2])
        delay = chosen.uniform(0, 1.5) if lines else chosen.uniform(0, 6)
        yield "worker" if i in workers else "group", lines, delay


def workers_of(process):
    """The grandchildren of a sweep: what its fork server has started."""
    parents = read_parents()
    return [pid for pid, parent in parents.items() if parents.get(parent) == process.pid]


def kill(process, whom):
    pids = workers_of(process) if whom == "worker" else []
    if pids:
        os.kill(random.Random(pids[0]).choice(pids), signal.SIGKILL)
    else:
        for pid in workers_of(process):  # which are in sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.killpg(process.pid, signal.SIGKILL)  # it is not waited for yet, so the group is still its own
        process.wait()


def histories(run_id):
    """Metric -> its points; of the speed only where they are."""
    client = tracking.client()
    found = {key: client.get_metric_history(run_id, key) for key in client.get_run(run_id).data.metrics}
    return {
        key: [(point.step, None if key.endswith("_per_second") else point.value) for point in points]
        for key, points in found.items()
    }


def tracked(title):
    """(role, arm, settings, seed) -> the histories of that run. Each is there once, with its configuration."""
    client = tracking.client()
    experiment = client.get_experiment_by_name(title).experiment_id
    found = {}
    for one in client.search_runs([experiment]):
        tags = one.data.tags
        if tags["ablate.role"] == "report":
            continue
        key = (tags["ablate.role"], tags["ablate.arm"], tags.get("ablate.trial"), tags.get("ablate.seed"))
        assert key not in found, f"two runs of {key}"
        assert one.info.status == "FINISHED"
        names = {item.path for item in client.list_artifacts(one.info.run_id)}
        own = {"sweep.yaml"} if key[0] == "arm" else {"config.yaml", "inputs.json"}
        assert names == {*own, "environment.json"}
        found[key] = histories(one.info.run_id), dict(one.data.params)
        for name, points in found[key][0].items():
            steps = [step for step, _ in points]
            assert steps == sorted(set(steps)), f"{name} of {key} has a step twice"
        of_report = ("verdict/", "val/loss")[: 2 if key[0] == "arm" else 1]
        for name in [name for name in found[key][0] if name.startswith(of_report)]:
            del found[key][0][name]  # the command makes a report, `run.sweep` makes none
    return found


def cells(record):
    return {
        (run.stage, run.arm, run.number, run.seed): (run.status, run.params, run.value, run.curve, run.metrics)
        for run in record.runs
    }


def disturbed(command, folder, seed, kills):
    """Runs `command`, kills it at all `moments` and starts it again each time; what it said."""
    process, told = None, []
    try:
        for whom, lines, delay in moments(seed, kills):
            if process is None or process.poll() is not None:
                process = Forked(*command, cwd=folder, session=True, merge=True)
            told += [process.stdout.readline() for _ in range(lines)]
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                kill(process, whom)
                told.append(f"--- {whom} killed\n")
            if process.poll() is not None:
                told.append(process.stdout.read())
                process.stdout.close()
        if process.poll() is None:
            told.append(process.communicate(timeout=240)[0])
    finally:
        if process is not None and process.poll() is None:  # something failed: leave nothing behind
            kill(process, "group")
    return told


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 4), *(pytest.param(seed, 10, marks=pytest.mark.chaos) for seed in SEEDS)]
)
def test_a_sweep_killed_again_and_again_has_the_table_of_an_uninterrupted_one(
    store, tiny_settings, tmp_path, monkeypatch, seed, kills
):
    with monkeypatch.context() as patch:  # in a store of its own: in one store no seed is spent twice
        patch.setenv("ABLATE_STORE", str(tmp_path / "plain"))
        plain = run.sweep(Sweep.from_tree(tree(tiny_settings, "small")), console=Console(quiet=True))
        expected = tracked("small")
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(tree(tiny_settings, "small")))
    command = ["-m", "ablate", "sweep", str(file)]
    output = tmp_path / "output.txt"
    told = disturbed(command, tmp_path, seed, kills)
    last = Forked(*command, cwd=tmp_path, merge=True)
    output.write_text("".join(told) + last.communicate(timeout=240)[0])
    story = f"seed {seed}; what the sweep said is in {output}"
    assert last.returncode == 0, story
    assert cells(read_sweep("small")) == cells(plain), story
    assert tracked("small") == expected, story
    kept = {(store / "runs" / read_sweep("small").best(arm).run_id) for arm in by_arm(plain)}
    assert kept <= set((store / "runs").iterdir())
    assert not list(store.glob("runs/*/previous.ckpt")), story
