"""The journal: what a killed process or a full disk leaves, what is refused, and silent machines."""

import errno
import json
import os
import stat

import optuna
import pytest
from scheduler.queues import open_queue
from scheduler.test_processes import spec_of

from ablate.config.errors import StoreError, TakenOverError
from ablate.scheduler import leases
from ablate.scheduler.storage import list_sweeps, open_existing, open_storage
from ablate.scheduler.storage_errors import explain_damage
from ablate.scheduler.storages import journal


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
        journal, "find_lock_failure", lambda folder: "a file cannot be locked (Function not implemented)"
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
