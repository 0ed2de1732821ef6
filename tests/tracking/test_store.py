"""The store: created once however many processes start, nothing lost while it is away, no secrets shown."""

import builtins
import contextlib
import json
import os
import re
import resource
import sqlite3
import threading

import optuna
import pytest
import sqlalchemy
from forked import Forked

from ablate import tracking
from ablate.cli import main
from ablate.config.errors import AblateError, StoreError
from ablate.sweeps.storage import open_storage, storage_url
from ablate.sweeps.storage_errors import translate_storage_errors
from ablate.sweeps.worker import await_store


def test_several_processes_may_start_at_once_on_a_new_store(tmp_path):
    (tmp_path / "start.py").write_text("from ablate import tracking; tracking.Tracker.start('together', 'run', {})")
    surroundings = {**os.environ, "ABLATE_STORE": str(tmp_path)}
    processes = [Forked("start.py", cwd=tmp_path, env=surroundings) for _ in range(3)]
    assert [(p.communicate(timeout=200)[1][-500:], p.returncode) for p in processes] == [("", 0)] * 3


def test_metrics_are_sent_in_batches_and_all_of_them_arrive(store, monkeypatch):
    calls = []
    client = tracking.client()
    send = client.log_batch
    monkeypatch.setattr(client, "log_batch", lambda *a, **k: (calls.append(1), send(*a, **k)))
    tracker = tracking.Tracker.start("e", "r", {"a": 1})
    for step in range(1000):
        tracker.log_metrics({"m": step / 2}, step)
    tracker.end("completed")
    assert len(calls) < 10
    assert [(m.step, m.value) for m in client.get_metric_history(tracker.run_id, "m")] == [
        (s, s / 2) for s in range(1000)
    ]


def test_what_the_store_does_not_take_is_kept_and_sent_later(store, monkeypatch, caplog):
    from mlflow.exceptions import MlflowException

    tracker = tracking.Tracker.start("e", "r", {})
    client = tracking.client()
    with monkeypatch.context() as away:

        def fail(*_, **__):
            raise MlflowException("away")

        away.setattr(client, "log_batch", fail)
        tracker.log_metrics({"m": 1.0}, 1)
        assert not tracker.flush()
    tracker.log_metrics({"m": 2.0}, 2)
    assert tracker.flush()
    assert [m.value for m in client.get_metric_history(tracker.run_id, "m")] == [1.0, 2.0]
    assert "kept until the store answers" in caplog.text


def test_what_is_unsent_at_the_end_is_written_to_a_file(store, monkeypatch):
    from mlflow.exceptions import MlflowException

    tracker = tracking.Tracker.start("e", "r", {})

    def fail(*_, **__):
        raise MlflowException("away")

    for name in ("log_batch", "set_terminated"):
        monkeypatch.setattr(tracking.client(), name, fail)
    tracker.log_metrics({"m": 1.5}, 7)
    tracker.end("completed")
    saved = json.loads((store / "unsent" / f"{tracker.run_id}.json").read_text())
    assert saved["status"] == "completed"
    assert saved["metrics"][0][:2] == ["m", 1.5]
    assert saved["metrics"][0][3] == 7


@pytest.mark.parametrize(
    ("status", "mlflow"),
    [
        ("completed", "FINISHED"),
        ("pruned", "FINISHED"),
        ("diverged", "FINISHED"),
        ("interrupted", "KILLED"),
        ("failed", "FAILED"),
    ],
)
def test_how_a_run_ends(store, status, mlflow):
    tracker = tracking.Tracker.start("e", "r", {})
    tracker.end(status, "because")
    run = tracking.client().get_run(tracker.run_id)
    assert run.info.status == mlflow
    assert (run.data.tags["ablate.status"], run.data.tags["ablate.reason"]) == (status, "because")


def test_no_stray_database_or_folder_appears_beside_the_store(store, tmp_path, monkeypatch):
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    monkeypatch.chdir(empty)
    tracker = tracking.Tracker.start("e", "r", {})
    tracker.log_text("x", "a.txt")
    tracker.end("completed")
    assert list(empty.iterdir()) == []
    assert list(store.glob("artifacts/**/a.txt"))


def test_passwords_are_not_shown():
    shown = tracking.redact("postgresql://me:secret@host/db")
    assert shown == "postgresql://me:***@host/db"


def test_a_store_below_a_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ABLATE_STORE", str(tmp_path / "file" / "store"))
    with pytest.raises(StoreError, match="ABLATE_STORE"):
        tracking.open_store()


def test_a_run_that_was_deleted_cannot_go_on(store):
    tracker = tracking.Tracker.start("e", "r", {})
    tracking.client().delete_run(tracker.run_id)
    with pytest.raises(AblateError, match="has been deleted from MLflow") as found:
        tracking.Tracker.resume(tracker.run_id)
    assert not isinstance(found.value, StoreError)  # it is this run that fails, not the store
    with pytest.raises(AblateError, match="has been deleted from MLflow"):
        tracking.Tracker.resume("0" * 32)


def locked(file, seconds):
    """Another connection that has a database for itself for so long; it is there when this returns."""
    other = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(seconds, other.close)
    release.start()
    return release


def test_a_database_that_is_locked_for_seconds_is_waited_for(store):
    """Longer than the five seconds that SQLite's driver waits by itself."""
    tracker = tracking.Tracker.start("e", "r", {})
    study = optuna.create_study(storage=open_storage(storage_url()))
    releases = [locked(store / name, 6) for name in ("mlflow.db", "optuna.db")]
    tracker.log_metrics({"m": 1.0}, 1)
    assert tracker.flush()
    study.set_user_attr("a", 1)
    for release in releases:
        release.join()
    assert [m.value for m in tracking.client().get_metric_history(tracker.run_id, "m")] == [1.0]


def test_a_database_that_stays_locked_is_told(store, monkeypatch):
    monkeypatch.setattr("ablate.tracking.connection.LOCKED", 0.3)
    monkeypatch.setattr("ablate.sweeps.storages.databases.LOCKED", 0.3)
    plain = sqlalchemy.text  # MLflow itself has each session wait 20 seconds
    monkeypatch.setattr("mlflow.store.db.utils.sql.text", lambda words: plain(words.replace("20000", "300")))
    tracking.client.cache_clear()
    tracking.ensure_experiment("e")
    study = optuna.create_study(storage=open_storage(storage_url()))
    releases = [locked(store / name, 3600) for name in ("mlflow.db", "optuna.db")]
    with pytest.raises(StoreError, match="locked"):
        tracking.Tracker.start("e", "r", {})
    with (
        pytest.raises(StoreError, match=r"locked.*run the same command again"),
        translate_storage_errors(storage_url()),
    ):
        study.set_user_attr("a", 1)
    for release in releases:
        release.cancel()
        release.function()


def test_a_server_that_is_away_is_waited_for_with_a_note(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://away")
    answers = iter([StoreError("No answer."), StoreError("No answer."), None])

    def ask():
        if error := next(answers):
            raise error

    monkeypatch.setattr(tracking, "check_store", ask)
    monkeypatch.setattr("ablate.sweeps.worker.time.sleep", lambda _: None)
    notes = []
    await_store(notes.append, lambda: False)
    assert notes == ["No answer. Waiting for it up to 2.0 min."]
    answers = iter([StoreError("No answer.")])
    with pytest.raises(StoreError):
        await_store(notes.append, lambda: True)  # Ctrl-C


def test_a_disk_that_takes_nothing_more_is_told_once_and_by_us_alone(store, capfd):
    """The database may not grow; MLflow's own log of it is a traceback."""
    with contextlib.closing(sqlite3.connect(store / "mlflow.db")) as database:
        database.execute("PRAGMA journal_mode=DELETE")
    tracking.client()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        status = main(["train", "model.layers=1", "trainer.max_steps=2", "trainer.val_check_interval=2"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    told = capfd.readouterr().err
    assert status == 2
    assert "Traceback" not in told
    assert "sqlalche" not in told
    (line,) = told.splitlines()
    assert re.match(r"ablate train: The MLflow store .* cannot be used: .*\. Check the disk's space", line)


@pytest.mark.parametrize("verb", [["status"], ["status", "s"], ["report", "s"], ["list", "sweeps"]], ids=" ".join)
@pytest.mark.parametrize(("at", "length"), [(0, 100), (4096, 40_000)], ids=["header", "pages"])
def test_verbs_that_read_say_that_the_studies_are_damaged(store, capsys, verb, at, length):
    url = storage_url()
    optuna.create_study(storage=open_storage(url), study_name="s@1/a").set_user_attr("spec", {"name": "s"})
    file = store / "optuna.db"
    copy = file.with_name("whole.db")
    with contextlib.closing(sqlite3.connect(file)) as opened, contextlib.closing(sqlite3.connect(copy)) as whole:
        opened.backup(whole)
    content = bytearray(copy.read_bytes())
    content[at : at + length] = bytes(range(1, 101)) * (length // 100)
    for left_over in store.glob("optuna.db-*"):
        left_over.unlink()
    file.unlink()
    file.write_bytes(content)
    assert main(verb) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert "optuna.db" in told
    assert re.search("damaged", told)


def test_a_stop_while_mlflow_is_imported_is_a_stop(monkeypatch):
    load = builtins.__import__

    def stopped(name, *more):
        if name == "mlflow.exceptions":
            raise KeyboardInterrupt
        return load(name, *more)

    monkeypatch.setattr(builtins, "__import__", stopped)
    with pytest.raises(KeyboardInterrupt), tracking.explain_errors("sqlite:///nowhere"):
        pass
