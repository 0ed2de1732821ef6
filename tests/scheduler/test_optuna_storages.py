"""Storages of every kind, the journal, and locks of files."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import signal
import stat
import time
from collections import Counter

import optuna
import pytest
from scheduler.queues import open_queue
from scheduler.test_processes import spec_of, together

from ablate.config.errors import StoreError, TakenOverError
from ablate.scheduler import leases, optuna_storages
from ablate.scheduler.optuna_storages import find_lock_failure, hold_file_lock, read_mount
from ablate.scheduler.storage import explain_damage, list_sweeps, open_existing, open_storage, read_sweep

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
            assert sorted(run.seed for run in selected) == spec.selection_seeds(len(selected))
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


@pytest.fixture
def file(tmp_path):
    return tmp_path / "journal"


@pytest.fixture
def url(file):
    return f"journal://{file}"


@pytest.mark.parametrize("torn", [b'{"op_code":5,"worker', b"x" * 9000])
def test_what_a_killed_process_left_of_a_line_harms_nobody(torn, file, url):
    """Of a line that is longer than what is read at a time, too."""
    study = optuna.create_study(storage=open_storage(url), study_name="s")
    study.enqueue_trial({"x": 1})
    whole = file.read_bytes()
    file.write_bytes(whole + torn)
    other = optuna.load_study(storage=open_storage(url), study_name="s")
    assert len(other.trials) == 1
    other.enqueue_trial({"x": 2})
    assert file.read_bytes().startswith(whole)
    assert [json.loads(line)["op_code"] for line in file.read_text().splitlines()] == [0, 4, 4]
    assert [trial.system_attrs["fixed_params"]["x"] for trial in study.trials] == [1, 2]


def test_a_full_disk_is_told_in_a_sentence_and_is_no_damage(url, monkeypatch):
    study = optuna.create_study(storage=open_storage(url), study_name="s")

    def fail(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match=r"No space left on device\. Finished trials are safe"):
            study.set_user_attr("key", 1)
    study.set_user_attr("key", 2)
    assert optuna.load_study(storage=open_storage(url), study_name="s").user_attrs == {"key": 2}


def test_a_file_that_is_something_else_is_left_as_it_is(file, url):
    file.write_bytes(b"SQLite format 3\0 and more")
    with pytest.raises(StoreError, match="is not a journal"):
        open_storage(url)
    assert file.read_bytes() == b"SQLite format 3\0 and more"


def test_a_damaged_line_is_told(file, url):
    optuna.create_study(storage=open_storage(url), study_name="s")
    file.write_bytes(file.read_bytes() + b"damage\n" + file.read_bytes())
    with pytest.raises(StoreError, match="its content is not valid"):
        open_storage(url)


def test_damage_while_it_is_open_is_told(file, url):
    storage = open_storage(url)
    optuna.create_study(storage=storage, study_name="s")
    file.write_bytes(file.read_bytes() + b'{"op_code":99,"worker_id":"w"}\n')
    with pytest.raises(StoreError, match=f"The Optuna storage {url} is damaged"), explain_damage(storage):
        storage.get_all_studies()


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("journal://relative", "give its absolute path"),
        ("journal:///", "give its absolute path"),
        ("journal:///no/such/folder/j", "there is no folder /no/such/folder"),
    ],
)
def test_an_address_that_is_none_is_told(address, text):
    with pytest.raises(StoreError, match=text):
        open_storage(address)


def test_a_file_system_without_locks_is_refused(file, url, monkeypatch):
    monkeypatch.setattr(
        optuna_storages, "find_lock_failure", lambda folder: "a file cannot be locked (Function not implemented)"
    )
    with pytest.raises(StoreError, match=r"a file cannot be locked .* Choose another folder, or a database"):
        open_storage(url)
    assert not file.exists()


def test_reading_makes_no_journal_and_a_new_one_is_for_its_user_alone(file, url):
    assert open_existing(url) is None
    assert list_sweeps(url) == {}
    assert not file.exists()
    open_storage(url)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_trial_of_a_machine_that_fell_silent_is_taken_over(url, monkeypatch):
    """Its signs of life reach the other machines through the journal."""
    now = [1000.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    spec = spec_of(1)
    here, there = (open_queue(open_storage(url), spec) for _ in range(2))
    task = there.take()
    owner = {**task.owner, "host": "elsewhere"}
    task.note(leases.OWNER, owner)
    lease = leases.Lease(task.storage, task.id, owner)
    for _ in range(3):
        lease.give_sign()
        here.studies.refresh()
        assert here.free_orphans() == 0
        now[0] += leases.EXPIRY - 1
    here.studies.refresh()
    assert here.free_orphans() == 0
    now[0] += 2
    assert here.free_orphans() == 1
    assert here.take().number == task.number
    with pytest.raises(TakenOverError):
        lease.check()


FORK = multiprocessing.get_context("fork")
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw
40 22 0:50 / /shared rw shared:2 - nfs4 server:/ rw,vers=4.2,hard,local_lock=none
41 22 0:51 / /shared/old\\040one rw shared:3 - nfs server:/old rw,vers=3,nolock,local_lock=all
42 22 0:52 / /lustre rw shared:4 - lustre mds@tcp:/l rw,localflock
43 22 0:53 / /home/me/there rw shared:5 - fuse.sshfs me@there: rw,user_id=0
"""


@pytest.mark.parametrize(
    ("folder", "kind", "failure"),
    [
        ("/home/me", "ext4", None),
        ("/shared/me", "nfs4", None),
        ("/shared/old one/me", "nfs", "local_lock=all"),
        ("/sharedness", "ext4", None),
        ("/lustre/me", "lustre", "localflock"),
        ("/home/me/there", "fuse.sshfs", "not seen by other machines"),
    ],
)
def test_a_file_system_whose_locks_other_machines_do_not_see_is_found_out(folder, kind, failure, tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    mounted = read_mount(folder, str(table))
    assert mounted[0] == kind
    monkeypatch.setattr(optuna_storages, "read_mount", lambda path: mounted)
    told = find_lock_failure(tmp_path)
    assert told is None if failure is None else failure in told


def refuse(*_):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.mark.parametrize(
    ("flock", "failure"), [(refuse, "Function not implemented"), (lambda *_: None, "can be locked again")]
)
def test_a_file_system_without_locks_is_found_out(flock, failure, tmp_path, monkeypatch):
    assert find_lock_failure(tmp_path) is None
    monkeypatch.setattr(fcntl, "flock", flock)
    assert failure in find_lock_failure(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path):
    file = str(tmp_path / "lock")
    ours, theirs = FORK.Pipe()

    def take():
        with hold_file_lock(file):
            theirs.send("held")
            signal.pause()

    process = FORK.Process(target=take)
    process.start()
    assert ours.recv() == "held"
    with open(file) as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    process.kill()
    process.join()
    with open(file) as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
