"""The store: created once however many processes start, nothing lost while it is away, no secrets shown."""

import builtins
import contextlib
import functools
import json
import os
import re
import resource
import shlex
import shutil
import sqlite3
import tempfile
import threading
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from forked import Forked
from mlflow.exceptions import MlflowException

from ablate import tracking
from ablate.cli import main
from ablate.config.errors import AblateError, StoreError
from ablate.scheduler.storage import list_sweeps, open_storage, storage_url, translate_storage_errors
from ablate.scheduler.worker import await_store
from ablate.tracking.databases import sqlite_file


def test_several_processes_may_start_at_once_on_a_new_store(tmp_path):
    (tmp_path / "start.py").write_text("from ablate import tracking; tracking.Tracker.start('together', 'run', {})")
    surroundings = {**os.environ, "ABLATE_STORE": str(tmp_path)}
    processes = [Forked("start.py", cwd=tmp_path, env=surroundings) for _ in range(3)]
    assert [(p.communicate(timeout=200)[1][-500:], p.returncode) for p in processes] == [("", 0)] * 3


@pytest.mark.parametrize("text", ["UNIQUE constraint failed: datasets.experiment_id", "the disk is full"])
def test_a_corpus_that_another_worker_logs_at_the_same_moment_is_logged_once(store, monkeypatch, text):
    tracker, client = tracking.Tracker.start("corpora", "run", {}), tracking.client()
    errors, send = [MlflowException(text)], client.log_inputs

    def log_inputs(run_id, inputs):
        send(run_id, inputs)  # as the other one does
        if errors:
            raise errors.pop()

    monkeypatch.setattr(client, "log_inputs", log_inputs)
    log = functools.partial(tracker.log_dataset, "topics", "a" * 64, "all topics", {}, {})
    if "UNIQUE" in text:
        log()
    else:
        with pytest.raises(StoreError, match=text):
            log()
    assert [one.dataset.name for one in client.get_run(tracker.run_id).inputs.dataset_inputs] == ["topics"]


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


def test_a_store_below_a_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ABLATE_STORE", str(tmp_path / "file" / "store"))
    with pytest.raises(StoreError, match="ABLATE_STORE"):
        tracking.open_store()


def restore(told):
    """Run the command that `told` ends with."""
    from click.testing import CliRunner
    from mlflow import experiments, runs

    address, *words = shlex.split(told.splitlines()[-1])
    place, number = words[-4:-2], words[-2:]
    command = {"experiments": experiments.commands, "runs": runs.commands}[place[0]]
    name, _, value = address.partition("=")
    done = CliRunner().invoke(command, [place[1], *number], env={name: value})
    assert "has been restored" in done.output, done.output


def test_a_run_that_was_deleted_goes_on_after_the_command_that_is_told(store):
    tracker = tracking.Tracker.start("e", "r", {})
    tracking.client().delete_run(tracker.run_id)
    with pytest.raises(AblateError, match=f"The run {tracker.run_id} was deleted in MLflow") as found:
        tracking.Tracker.resume(tracker.run_id)
    assert not isinstance(found.value, StoreError)  # it is this run that fails, not the store
    with pytest.raises(StoreError, match=f"The run {tracker.run_id} was deleted in MLflow"):
        tracker.set_tags({"a": "b"})
    restore(str(found.value))
    assert tracking.Tracker.resume(tracker.run_id).run_id == tracker.run_id
    with pytest.raises(AblateError, match=r"There is no run 0{32} in the MLflow store"):
        tracking.Tracker.resume("0" * 32)


def test_an_experiment_that_was_deleted_is_restored_with_its_runs_by_the_command_that_is_told(store):
    tracker = tracking.Tracker.start("it's mine", "r", {})
    client = tracking.client()
    client.delete_experiment(client.get_run(tracker.run_id).info.experiment_id)
    started = functools.partial(tracking.Tracker.start, "it's mine", "r", {})
    for refused in (started, lambda: tracking.Tracker.resume(tracker.run_id)):
        with pytest.raises(StoreError, match=r"was deleted in MLflow\. Nothing of it is lost yet\.") as found:
            refused()
    restore(str(found.value))
    assert client.get_run(tracker.run_id).info.lifecycle_stage == "active"
    started()


def test_deleted_runs_of_a_sweep_are_listed_and_others_are_not(store):
    runs = [tracking.Tracker.start("e", f"seed {number}", {}).run_id for number in range(8)]
    client, own = tracking.client(), runs[:7]
    assert tracking.list_deleted("e", own) == tracking.list_deleted("another", own) == []
    client.delete_run(runs[7])
    client.delete_run(runs[2])
    (told,) = tracking.list_deleted("e", own)
    assert told.startswith("The run 'seed 2' was deleted in MLflow.")
    restore(told)
    assert tracking.list_deleted("e", own) == []
    for run_id in own:
        client.delete_run(run_id)
    assert tracking.list_deleted("e", own)[-1] == "2 more runs were deleted in MLflow."
    client.delete_experiment(client.get_experiment_by_name("e").experiment_id)
    (told,) = tracking.list_deleted("e", own)
    assert told.startswith("The experiment 'e' was deleted in MLflow.")


@pytest.mark.parametrize("name", ["a?b", "a#b {a}", "a%20b ä'&"])
def test_a_store_may_have_any_name(name, store, tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / name / "store", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("ABLATE_STORE", str(folder))
    folder.mkdir(parents=True)
    shutil.copy(store / "mlflow.db", folder)
    tracking.client.cache_clear()
    tracker = tracking.Tracker.start("e", "r", {})
    tracker.log_text("text", "a.txt")
    assert Path(tracking.client().download_artifacts(tracker.run_id, "a.txt")).read_text() == "text"
    optuna.create_study(storage=open_storage(storage_url()), study_name="found")
    tracking.client.cache_clear()
    with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as database:
        assert database.execute("SELECT run_uuid FROM runs").fetchall() == [(tracker.run_id,)]
    with contextlib.closing(sqlite3.connect(folder / "optuna.db")) as database:
        assert database.execute("SELECT study_name FROM studies").fetchall() == [("found",)]
    assert len(list(folder.glob("artifacts/e/*/artifacts/a.txt"))) == 1
    assert {file.name for file in tmp_path.iterdir()} == {name, "elsewhere", store.name}
    assert [*elsewhere.iterdir()] == []
    assert sqlite_file(f"{storage_url()}") == folder / "optuna.db"


@contextlib.contextmanager
def nobody():
    """Be a user to whom nothing belongs."""
    if os.geteuid():
        yield
        return
    os.setresgid(65534, 65534, 0)
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)


@pytest.fixture
def foreign(monkeypatch, store):
    """A store of somebody else, with a run and a study: (its folder, the run's id, what takes the rights to write)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "store"
        folder.mkdir()
        shutil.copy(store / "mlflow.db", folder)
        monkeypatch.setenv("ABLATE_STORE", str(folder))
        tracking.client.cache_clear()
        tracker = tracking.Tracker.start("e", "r", {})
        tracker.log_metrics({"m": 1.5}, 1)
        tracker.end("completed")
        for url in (storage_url(), f"journal://{folder}/journal"):
            study = optuna.create_study(storage=open_storage(url), study_name="s@1/pre")
            study.set_user_attr("spec", {})
        tracking.client.cache_clear()

        def lock(*left_out):
            for left in left_out:
                (folder / left).unlink(missing_ok=True)
            for path in (Path(name), folder, *folder.rglob("*")):
                path.chmod(0o555 if path.is_dir() else 0o444)

        yield folder, tracker.run_id, lock
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
        Path(name).chmod(0o755)
        tracking.client.cache_clear()


@pytest.mark.parametrize("closed", [False, True], ids=["beside a writer", "closed"])
def test_a_store_that_can_only_be_read_is_read(foreign, closed):
    folder, run_id, lock = foreign
    if closed:
        for name in ("mlflow.db", "optuna.db"):
            with contextlib.closing(sqlite3.connect(folder / name)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ends = ("-shm", "-wal") if closed else ()
    lock(*(f"{name}.db{end}" for name in ("mlflow", "optuna") for end in ends))
    with nobody():
        assert tracking.client().get_run(run_id).data.metrics == {"m": 1.5}
        assert list_sweeps(storage_url()) == list_sweeps(f"journal://{folder}/journal") == {"s": [1]}
        assert not tracking.cache_folder().is_relative_to(folder)
        with pytest.raises(StoreError, match=rf"Results cannot be written to {folder}: Permission denied"):
            tracking.open_store()
        with pytest.raises(StoreError, match=r"readonly database.*It can only be read: set ABLATE_STORE"):
            tracking.Tracker(run_id).set_tags({"a": "b"})


def test_changes_that_cannot_be_read_are_not_left_out_without_a_word(foreign):
    folder, _, lock = foreign
    assert (folder / "optuna.db-wal").stat().st_size
    lock("optuna.db-shm")
    with (
        nobody(),
        pytest.raises(StoreError, match=r"optuna.db-wal has changes that cannot be read without optuna.db-shm"),
    ):
        list_sweeps(storage_url())


def test_a_store_that_may_not_be_read_is_not_taken_for_an_empty_one(foreign, capsys):
    folder, _, _ = foreign
    folder.chmod(0o700)
    folder.parent.chmod(0o755)
    with nobody():
        assert main(["status"]) == 2
    assert f"{folder}/optuna.db cannot be read: Permission denied" in capsys.readouterr().err


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
    monkeypatch.setattr("ablate.scheduler.optuna_storages.LOCKED", 0.3)
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
    monkeypatch.setattr("ablate.scheduler.worker.time.sleep", lambda _: None)
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
