"""`make chaos`: sweeps that are killed, stopped, starved of disk and robbed of checkpoints, again and again.

What docs/explanation/resume.md promises is held here: however a sweep was disturbed, each trial is there once, and its
numbers are those that its settings give when nobody disturbs them. With one worker, and with grid and random search by
any number, the trials are also the same ones. With several workers TPE proposes by what has ended when it is asked: the
trials may be others, as many of them.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import time
import warnings
from pathlib import Path

import pytest
import yaml
from forked import Forked
from rich.console import Console
from run_table import by_arm
from scheduler.test_nothing_lost import cells, kill, tracked, tree, workers_of

from ablate.scheduler import run
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.train import train

SEEDS = [int(seed) for seed in os.environ.get("ABLATE_TEST_SEEDS", "0").split(",")]
MISFORTUNES = 12
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds workers in /proc"),
]
SEARCHES = {"tpe": {"kind": "tpe", "n_startup_trials": 1}, "random": "random", "grid": "grid"}


class Disk:
    """A store on a small file system of its own, which can be filled."""

    def __init__(self, folder, size=64):
        self.folder = folder
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(folder)]
        self.own = subprocess.run(words, capture_output=True).returncode == 0

    def fill(self):
        with contextlib.suppress(OSError), open(self.folder / "filler", "wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()

    def free(self):
        (self.folder / "filler").unlink(missing_ok=True)

    def close(self):
        if self.own:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class Sufferer:
    """A command that is started again whenever it has ended, and what it said."""

    def __init__(self, command, folder, store, chosen, disk):
        self.command, self.folder, self.store, self.chosen, self.disk = command, folder, store, chosen, disk
        self.process, self.told, self.statuses = None, [], []

    def live(self, lines):
        """Start it where it has ended, and read so many lines."""
        if self.process is None or self.process.poll() is not None:
            self.process = Forked(*self.command, cwd=self.folder, session=True, merge=True)
        self.told += [self.process.stdout.readline() for _ in range(lines)]

    def end(self, seconds=240):
        """Wait for it."""
        self.told.append(self.process.communicate(timeout=seconds)[0])
        self.statuses.append(self.process.returncode)

    def suffer(self, what, delay):
        """One misfortune, after a delay."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(delay)
        self.told.append(f"--- {what}\n")
        if self.process.poll() is None:
            getattr(self, f"_{what}")()
        if self.process.poll() is not None and not self.process.stdout.closed:
            self.told.append(self.process.stdout.read())
            self.process.stdout.close()

    def _group(self):
        kill(self.process, "group")

    def _worker(self):
        kill(self.process, "worker")

    def _parent(self):
        """Its workers see for themselves that it is gone."""
        workers = workers_of(self.process)
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in workers), "a worker outlived its sweep by a minute"

    def _terminate(self):
        self.process.send_signal(signal.SIGTERM)
        self.end(60)
        done = re.search(r"\[(\d+)/\1\](?!.* started:)", self.told[-1], re.DOTALL)  # the report alone is cut off then
        assert self.process.returncode in (130, 0, *([-signal.SIGTERM] if done else [])), self.told[-1]

    def _freeze(self):
        """A worker, or the sweep itself, stands still for a moment and goes on."""
        pids = [*workers_of(self.process), self.process.pid]
        pid = self.chosen.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.chosen.uniform(0.5, 2))
            os.kill(pid, signal.SIGCONT)

    def _freeze_and_kill(self):
        """A worker that stands still is killed with the rest."""
        for pid in workers_of(self.process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        kill(self.process, "group")

    def _damage(self):
        """The group is killed, and the newest checkpoints are damaged."""
        kill(self.process, "group")
        for file in self.chosen.sample(found := sorted(self.store.glob("runs/*/last.ckpt")), min(2, len(found))):
            if not file.is_file():
                continue
            content = bytearray(file.read_bytes())
            if not content:
                continue
            if self.chosen.random() < 0.5:
                content = content[: len(content) // 2]
            else:
                content[self.chosen.randrange(len(content))] ^= 1
            file.write_bytes(content)

    def _full(self):
        """The disk is full until the command has given up."""
        if not self.disk.own:
            return
        self.disk.fill()
        try:
            self.end(120)
        finally:
            self.disk.free()
        assert self.statuses[-1] in (0, 1, 2), self.told[-1]


WHATS = ("group", "parent", "worker", "terminate", "freeze", "freeze_and_kill", "damage", "full")


@pytest.fixture
def disk(store):
    kept = store.with_name("kept")
    shutil.copytree(store, kept)
    disk = Disk(store)
    if not disk.own:
        warnings.warn("no file system can be mounted here: the disk is never full", stacklevel=1)
    shutil.copytree(kept, store, dirs_exist_ok=True)
    yield disk
    disk.close()


def draw(seed, workers):
    """What happens, after how many lines of output, and how many seconds later. Workers are killed three times at most:
    a trial whose worker dies again and again counts as failed."""
    chosen = random.Random(f"{seed} {workers}")
    whats = [*WHATS, *chosen.choices([what for what in WHATS if what != "worker"], k=MISFORTUNES - len(WHATS))]
    chosen.shuffle(whats)
    return chosen, [(what, chosen.choice([0, 1, 1, 2]), chosen.uniform(0, 3)) for what in whats]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("search", "workers"), [("tpe", 1), ("tpe", 2), ("random", 2), ("grid", 2)])
def test_a_sweep_survives(store, disk, tiny_settings, tmp_path, search, workers, seed):
    def build(name):
        built = {**tree(tiny_settings, name), "sampler": SEARCHES[search]}
        return {**built, "search": {"optimizer.lr": [1e-3, 3e-3]}} if search == "grid" else built

    chosen, misfortunes = draw(seed, workers)
    plain = run.sweep(Sweep.from_tree(build("plain")), workers=workers, console=Console(quiet=True))
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(build("small")))
    sufferer = Sufferer(["-m", "ablate", "sweep", str(file), "--workers", str(workers)], tmp_path, store, chosen, disk)
    output = tmp_path / "output.txt"
    try:
        for what, lines, delay in misfortunes:
            sufferer.live(lines)
            sufferer.suffer(what, delay)
        sufferer.live(0)
        sufferer.end()
        if sufferer.statuses[-1] == 1:  # a trial that failed is tried again by the same command
            sufferer.live(0)
            sufferer.end()
    finally:
        disk.free()
        output.write_text("".join(sufferer.told))
        if sufferer.process.poll() is None:
            kill(sufferer.process, "group")
    story = f"seed {seed}; what the sweep said is in {output}: {[what for what, *_ in misfortunes]}"
    assert sufferer.statuses[-1] == 0, story
    assert "Traceback" not in output.read_text(), story
    record = read_sweep("small")
    assert [len(trials) for trials in by_arm(record).values()] == [len(trials) for trials in by_arm(plain).values()]
    if search != "tpe" or workers == 1:
        assert cells(record) == cells(plain), story
        assert tracked("small") == tracked("plain"), story
    check_numbers(record, tracked("small"), story)


def check_numbers(record, runs, story):
    """Each trial has the numbers of a run with its settings that nobody disturbs."""
    for arm, trials in by_arm(record).items():
        assert sorted(trial.number for trial in trials) == list(range(len(trials))), story
        for trial in trials:
            assert trial.status == "completed", story
            again = train(record.spec.at(arm, trial.params))
            assert (again.metrics, again.step) == (trial.metrics, trial.step), f"{arm} {trial.number}: {story}"
    assert len([key for key in runs if key[0] == "trial"]) == sum(map(len, by_arm(record).values())), story
