"""A sweep on each kind of storage: its processes are killed and its servers restarted, and no trial is lost or run
twice."""

import time
from collections import Counter

import pytest
from scheduler.test_processes import spec_of, together

from ablate.scheduler.storage import read_sweep

TRIALS, PROCESSES, KILLED = 200, 8, 2  # of the whole test; the default run has a small one


class File:
    """A storage without a server."""

    restarts = 0

    def __init__(self, url):
        self.url = url


class Database(File):
    """A database server, which is restarted."""

    restarts = 2

    def __init__(self, postgres):
        super().__init__(postgres.database())
        self.restart = lambda: postgres.control("restart")


@pytest.fixture
def place(request, tmp_path):
    return {
        "file": lambda: File(f"sqlite:///{tmp_path / 'optuna.db'}"),
        "journal": lambda: File(f"journal://{tmp_path / 'journal'}"),
        "server": lambda: Database(request.getfixturevalue("postgres")),
    }[request.param]()


def restart_at(place, counts):
    """Restarts the servers of `place` when so many trials were begun."""

    def watch(files, started):
        for wanted in counts:
            while sum(len(file.read_text().splitlines()) for file in files if file.exists()) < wanted:
                assert any(process.is_alive() for process in started)
                time.sleep(0.02)
            place.restart()

    return watch


def check_whole(spec, url, asked, cut_off):
    """Every trial and every seed is there once; none was run twice but the `cut_off`, in their middle."""
    record = read_sweep("many", url)
    for arm in spec.all_arms:
        assert [t.number for t in sorted(record.search(arm), key=lambda t: t.number)] == list(range(spec.trials(arm)))
        assert {t.status for t in record.search(arm)} == {"completed"}
        assert sorted(run.seed for run in record.fresh(arm)) == spec.fresh_seeds()
        for _, selected in record.list_candidates(arm):
            assert sorted(run.seed for run in selected) == spec.selection_seeds()
    told = Counter(line for lines in asked for line in lines)
    runs = record.runs
    assert len(told) == len(runs)
    assert sum(told.values()) - len(told) <= cut_off
    lines = {f"{run.arm} {run.params['optimizer.lr']!r} None" for arm in spec.all_arms for run in record.search(arm)}
    assert lines <= set(told)


@pytest.mark.parametrize(
    ("place", "trials"), [("journal", 60), pytest.param("server", 5, marks=pytest.mark.chaos)], indirect=["place"]
)
def test_a_small_sweep_loses_and_doubles_nothing(place, trials, tmp_path):
    """A journal is so fast that each of three processes gets one of a few more trials."""
    spec = spec_of(trials, confirm={"seeds": 2, "selection_seeds": 1})
    watch = restart_at(place, [3, 9][: place.restarts]) if place.restarts else None
    asked = together(spec, place.url, tmp_path, 3, killed=1, dying=(0, 0), deaths=[], meanwhile=watch)
    check_whole(spec, place.url, asked, cut_off=1)


@pytest.mark.chaos
@pytest.mark.parametrize("place", ["file", "journal", "server"], indirect=True)
def test_a_large_sweep_loses_and_doubles_nothing(place, tmp_path):
    """200 trials by 8 processes, of which two are killed with -9, while the server is restarted."""
    spec = spec_of(TRIALS // 2)
    counts = [30, 90, 150][: place.restarts]
    watch = restart_at(place, counts) if counts else None
    asked = together(spec, place.url, tmp_path, PROCESSES, killed=KILLED, dying=(8, 0), deaths=[], meanwhile=watch)
    check_whole(spec, place.url, asked, cut_off=KILLED)
