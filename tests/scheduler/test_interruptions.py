"""Sweeps that are stopped, killed or cut off: nothing is lost or run twice, and they end as undisturbed ones."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import optuna
import pytest
import yaml
from forked import Forked, fork_worker
from rich.console import Console
from run_table import counts
from scheduler.queues import open_queue, read
from scheduler.small import run_here, run_sweep, spec_tree, stop_when, table

from ablate import tracking
from ablate.config.errors import AblateError, StoreError, SweepError, TakenOverError
from ablate.reports.findings import list_cautions
from ablate.scheduler import run, status
from ablate.scheduler.executors import local
from ablate.scheduler.executors.executor import Crashes, WorkerLog, Workers, read_error
from ablate.scheduler.leases import EXPIRY, Lease, Watch, _read_start_time, describe_process
from ablate.scheduler.preparation import begin_session
from ablate.scheduler.preparation import open_queue as open_queue_of
from ablate.scheduler.progress import Display
from ablate.scheduler.status import Follower, read_statuses
from ablate.scheduler.storage import do_locked, open_storage, read_sweep, storage_url
from ablate.scheduler.worker import STOPPED, Worker
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.sweep import Sweep
from ablate.tracking.databases import LostConnectionError


def load_trials(study):
    return optuna.load_study(study_name=study, storage=open_storage(storage_url())).trials


def test_a_confirmation_that_was_stopped_goes_on(store, spec, monkeypatch):
    settings = {"arms": {"pre": {"norm": "pre"}}, "budget": {"trials": 1}, "confirm": {"seeds": 2}}
    with monkeypatch.context() as patch:  # in a store of its own: in one store no seed is spent twice
        patch.setenv("ABLATE_STORE", str(store.parent / "plain"))
        plain = run_here(spec(**settings))

    def has_validated(task):
        return task.run.stage == FRESH and task.read().intermediate_values

    with monkeypatch.context() as patch:
        stop_when(patch, has_validated)
        with pytest.raises(KeyboardInterrupt):
            run_here(spec(**settings))
    assert read_sweep("small").fresh("pre")[0].status == "interrupted"
    record = run_here(spec(**settings))
    assert [(t.params, t.value, t.curve) for t in record.fresh("pre")] == [
        (t.params, t.value, t.curve) for t in plain.fresh("pre")
    ]
    assert len(load_trials("small@1/pre/seeds")) == 2


def test_a_confirmation_that_fails_is_told(store, spec, monkeypatch):
    settings = {"arms": {}, "budget": {"trials": 1}, "confirm": {"seeds": 1}}
    call = Worker._call_train

    def fail(self, task, lease):
        if task.run.stage == FRESH:
            raise RuntimeError("it breaks")
        return call(self, task, lease)

    monkeypatch.setattr(Worker, "_call_train", fail)
    record = run_here(spec(**settings))
    assert (
        counts(record)["failed"],
        len(record.runs.select(status="failed")),
    ) == (0, 1)
    assert read_statuses("small")[0]["failures"] == ["seed 1: RuntimeError: it breaks"]
    notes = list_cautions(record)
    assert any(note.startswith("1 fresh seed of all crashed, which is not an outcome") for note in notes)
    assert any("all 0 are done" in note for note in notes)


def test_a_killed_worker_is_replaced_and_the_results_are_those_of_an_undisturbed_sweep(
    store, undisturbed, spec, monkeypatch
):
    look, killed = Follower.look, []

    def kill_one(self):
        look(self)
        for trial in [] if killed else load_trials("small@1/pre"):
            if trial.state.name == "RUNNING" and len(trial.intermediate_values) >= 2:
                killed.append(trial.number)
                os.kill(trial.user_attrs["owner"]["pid"], signal.SIGKILL)

    monkeypatch.setattr(status, "SHARE", 0.0)
    monkeypatch.setattr(status, "POLL", 0.0)
    monkeypatch.setattr(run, "POLL", 0.01)
    monkeypatch.setattr(Follower, "look", kill_one)
    shown = Console(file=io.StringIO(), width=200)
    record = run.sweep(spec(), workers=1, console=shown)
    assert killed
    assert re.search(f"pre #{killed[0]} resumed at update (4|8|12)/12", shown.file.getvalue())
    assert "Worker 0 was killed by signal 9 and is replaced." in shown.file.getvalue()
    assert [t.number for t in record.search("pre")] == [0, 1]
    assert tracking.client().get_run(record.search("pre")[0].run_id).info.run_name == "pre #0"
    assert table(record) == undisturbed
    trials = load_trials("small@1/pre")
    claims = [trial.user_attrs["owner"]["claim"] for trial in trials]
    assert claims == [2 if trial.number == killed[0] else 1 for trial in trials]  # it stayed one trial


def test_a_disk_that_fails_stops_the_sweep_and_costs_no_trial(store, undisturbed, spec):
    shutil.rmtree(store / "runs", ignore_errors=True)
    (store / "runs").touch()  # nothing can be written below it
    with pytest.raises(AblateError, match=r"runs/.* cannot be created.*the same command continues"):
        run_sweep(spec())
    assert counts(read_sweep("small"))["failed"] == 0
    (store / "runs").unlink()
    assert table(run_here(spec())) == undisturbed


def test_what_a_killed_worker_did_not_write_down_is_made_up_for(store, undisturbed, spec, monkeypatch):
    """The run that it started and its validations are in MLflow, not in Optuna."""
    with monkeypatch.context() as patch:
        stop_when(patch, lambda task: len(task.read().intermediate_values) == 2)
        with pytest.raises(KeyboardInterrupt):
            run_here(spec())
    storage = open_storage(storage_url())
    (trial,) = optuna.load_study(study_name="small@1/pre", storage=storage).trials
    assert (trial.state.name, "pid" in trial.user_attrs["owner"]) == ("RUNNING", False)
    storage.set_trial_user_attr(trial._trial_id, "run_id", None)
    assert table(run_here(spec())) == undisturbed
    experiment = tracking.client().get_experiment_by_name("small").experiment_id
    runs = tracking.client().search_runs([experiment], "tags.`ablate.role` = 'trial'")
    assert sorted(r.info.run_name for r in runs) == ["mix #0", "mix #1", "pre #0", "pre #1"]


def test_a_trial_that_kills_its_worker_every_time_counts_as_failed(store, spec, deadly):
    search = {"norm.layer.kind": ["deadly"]}
    settings = {"arms": {}, "budget": {"trials": 1}, "search": search, "plugins": [deadly("KILL")]}
    shown = Console(file=io.StringIO(), width=200)
    record = run.sweep(spec(**settings), workers=1, console=shown)
    (trial,) = record.search("all")
    assert (trial.status, trial.reason) == ("failed", "its process was killed or crashed, 3 times without progress")
    assert shown.file.getvalue().count("Worker 0 was killed by signal 9 and is replaced.") == 3
    assert "all #0 FAILED, its process was killed or crashed" in shown.file.getvalue()


@pytest.mark.parametrize("how", [os.WNOWAIT, 0], ids=["nobody asked how it ended", "reaped"])
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_trials_of_a_sweep_that_was_killed_are_taken_up(store, spec, how):
    sweep = spec(arms={}, budget={"trials": 1})
    task = open_queue(open_storage(storage_url()), sweep).take()
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    task.note("owner", {**describe_process(), "pid": gone.pid, "started": _read_start_time(gone.pid)})
    assert [row["running"] for row in read_statuses("small")] == [1]
    gone.stdin.close()
    os.waitid(os.P_PID, gone.pid, os.WEXITED | how)
    assert [row["interrupted"] for row in read_statuses("small")] == [1]
    record = run_sweep(sweep)
    assert [(t.status, t.params) for t in record.search("all")] == [("completed", task.params)]


def test_a_trial_of_a_living_sweep_is_left_alone(store, spec):
    queue = open_queue(open_storage(storage_url()), spec(arms={}, budget={"trials": 1}))
    queue.take()
    assert queue.begin_session() == 0
    assert [run.status for run in read(queue).search("all")] == ["running"]
    assert queue.take() is None


@pytest.fixture
def clock(monkeypatch):
    """A clock of the leases that the test moves: clock[0] seconds."""
    now = [0.0]
    monkeypatch.setattr("ablate.scheduler.leases.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_trial_of_a_machine_that_fell_silent_is_taken_up_once(store, spec, clock):
    """By whoever has watched it for long enough; whoever comes later sees signs of the new owner."""
    sweep, storage = spec(arms={}, budget={"trials": 1}), open_storage(storage_url())
    queue, other = (open_queue(storage, sweep) for _ in range(2))
    task = queue.take()
    elsewhere = {"host": "elsewhere", "pid": 1, "started": "1"}
    task.note("owner", {**task.owner, **elsewhere, "parent": elsewhere})
    for beat in range(3):  # as long as there are signs of life
        clock[0] += 0.9 * EXPIRY
        task.note("signs", {"beat": beat})
        assert queue.begin_session() == other.begin_session() == 0
    clock[0] += 1.1 * EXPIRY
    again = queue.take()
    assert (again.number, again.params) == (task.number, task.params)
    assert again.owner["claim"] == 2
    assert other.begin_session() == 0
    assert [run.status for run in read(other).search("all")] == ["running"]
    with pytest.raises(TakenOverError):
        task.record_failure("too late")
    again.record_failure("it breaks")


def test_a_process_that_stood_still_notices_that_its_trial_was_taken_over(store, spec, clock):
    sweep, storage = spec(arms={}, budget={"trials": 1}), open_storage(storage_url())
    task = open_queue(storage, sweep).take()
    lease = Lease(task.storage, task.id, task.owner)
    lease.check_if_old()
    lease.check()
    other = open_queue(storage, sweep)
    other._watch = SimpleNamespace(is_silent=lambda key, trial: True)
    other.take()
    lease.check_if_old()  # it was heard of a moment ago
    clock[0] += EXPIRY
    with pytest.raises(TakenOverError):
        lease.check_if_old()


def test_signs_of_life_are_seen_by_the_clock_of_the_observer(store, spec, clock):
    task = open_queue(open_storage(storage_url()), spec(arms={}, budget={"trials": 1})).take()
    lease, watch, key = Lease(task.storage, task.id, task.owner), Watch(), (task.study, task.number)
    for _ in range(4):
        lease.give_sign()
        assert not watch.is_silent(key, task.read())
        clock[0] += 0.9 * EXPIRY
    assert not watch.is_silent(key, task.read())
    clock[0] += 0.2 * EXPIRY
    assert watch.is_silent(key, task.read())
    assert not Watch().is_silent(key, task.read())  # which has not watched it


def test_a_trial_that_lost_its_group_is_not_taken_from_a_process_that_stands_still(store, spec):
    """Its lock is not broken: the process has let it go by itself."""
    queue = open_queue(open_storage(storage_url()), spec(arms={}, budget={"trials": 1}))
    task = queue.take()
    task.record_loss()
    assert task.read().user_attrs["owner"]["reason"] == "other ranks of its group were lost"
    again = queue.take()
    assert (again.owner["claim"], again.owner["taken over"]) == (2, False)


def test_who_follows_a_sweep_sees_its_end_also_where_a_trial_failed(store, spec, monkeypatch):
    call, begun = Worker._call_train, []

    def fail_first(self, task, lease):
        begun.append(task.number)
        if len(begun) == 1:
            raise RuntimeError("it breaks")
        return call(self, task, lease)

    queue, _ = begin_session(spec(arms={}), storage_url(), False, 1)
    shown = Console(file=io.StringIO(), width=200)
    with Display(shown, "val/loss", 1) as display:
        follower = Follower(queue.full_name, queue.storage, display)
        assert not follower.is_over()
        monkeypatch.setattr(Worker, "_call_train", fail_first)
        record = run_here(spec(arms={}))
        follower.look()
        assert follower.is_over()
    assert counts(record)["failed"] == 1
    assert "all #0 FAILED, RuntimeError: it breaks" in shown.file.getvalue()


def test_results_that_a_killed_command_did_not_write_to_mlflow_are_written_by_the_next(store, spec, monkeypatch):
    def kill(record, arm):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run, "_close_parent", kill)
        with pytest.raises(KeyboardInterrupt):
            run_here(spec(arms={}))
    record = run_here(spec(arms={}))
    parent = tracking.client().get_run(record.parents["all"])
    assert (parent.info.status, parent.data.tags["ablate.best.run_id"]) == ("FINISHED", record.best("all").run_id)
    monkeypatch.setattr(run, "_close_parent", kill)
    run_here(spec(arms={}))  # once is enough


def test_workers_that_were_started_before_one_that_cannot_be_are_known(store):
    class Some(Workers):
        def start_one(self, number, log):
            if number == 2:
                raise OSError("it cannot start")

    workers = Some("small", "sqlite://", 3, 1)
    with pytest.raises(OSError, match="it cannot start"):
        workers.start(3)
    assert [slot.number for slot in workers.slots] == [0, 1]


def test_the_output_of_a_worker_is_read_on_where_it_was_left(store):
    """Also where it is no UTF-8, and where a line is not finished yet."""
    log = WorkerLog("small", 0)
    with open(log.path, "ab") as file:
        for written, lines in (
            (b"one\n\xff\xfe two\nthr", ["one", "\ufffd\ufffd two"]),
            (b"ee\n", ["three"]),
            (b"four\nablate work: The disk is full:\n  /data\n", ["four"]),
        ):
            file.write(written)
            file.flush()
            assert log.read_lines() == lines
    assert read_error(log.path) == "The disk is full:\n  /data"


def test_a_full_disk_is_named_where_a_worker_could_write_nothing(store, monkeypatch):
    log = WorkerLog("small", 0).path
    assert read_error(log).startswith("A worker ended with exit status 2")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=0))
    told = rf"The disk of {log.parent} is full\. Free some space"
    with pytest.raises(StoreError, match=told):
        read_error(log)
    with pytest.raises(StoreError, match=told):
        Crashes().add(1.0, "ends with exit status 1", log)


def test_what_was_taken_over_is_dropped_and_the_worker_goes_on(store, spec, monkeypatch):
    call, taken = Worker._call_train, []

    def take_over(self, task, lease):
        result = call(self, task, lease)
        if not taken:
            taken.append(task.number)
            do_locked(task.storage, lambda: self.queue.free(task.study, task.read(), "its machine fell silent", {}))
        return result

    monkeypatch.setattr(Worker, "_call_train", take_over)
    record = run_here(spec(arms={}))
    assert [t.status for t in record.search("all")] == ["completed", "completed"]
    assert [t.user_attrs["owner"]["claim"] for t in load_trials("small@1/all")] == [2, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="stops a process")
def test_a_worker_that_stood_still_writes_nothing_when_it_comes_back(store, spec, deadly, monkeypatch):
    """Another trains its trial to the end meanwhile."""
    settings = {"arms": {}, "search": {"norm.layer.kind": ["deadly"]}, "sampler": "grid", "plugins": [deadly("STOP")]}
    title = begin_session(spec(**settings), storage_url(), False, 1)[0].full_name
    log = store / "worker.log"
    worker = fork_worker(["work", title], os.environ, log)
    wait_for(lambda: "T (stopped)" in Path(f"/proc/{worker.pid}/status").read_text(), worker)
    try:
        monkeypatch.setattr("ablate.scheduler.leases.EXPIRY", 0.0)  # of this process
        record = run_here(spec(**settings))
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    worker.wait()
    (trial,) = load_trials("small@1/all")
    assert (trial.user_attrs["owner"]["pid"], trial.user_attrs["owner"]["claim"]) == (os.getpid(), 2)
    assert table(record) == table(read_sweep("small"))
    tracked = tracking.client().get_run(trial.user_attrs["run_id"])
    assert (tracked.info.status, tracked.data.tags["ablate.status"]) == ("FINISHED", "completed")
    assert worker.poll() == 0, log.read_text()
    assert "all #0 was taken over by another process" in log.read_text()


def wait_for(condition, process):
    """What `condition` returns, once that is true."""
    while not (answer := condition()):
        assert process.poll() is None
        time.sleep(0.02)
    return answer


def sweep_file(tmp_path, tree):
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def count_completed():
    try:
        return counts(read_sweep("small"))["completed"]
    except SweepError:  # it has not begun
        return 0


def test_a_stopped_command_is_continued_by_the_same_command(store, tiny_settings, tmp_path):
    """By Ctrl-C, then by SIGTERM, then by SIGKILL, each in the middle of a trial."""
    longer = {**tiny_settings, "trainer": {**tiny_settings["trainer"], "max_steps": 60, "val_check_interval": 10}}
    undisturbed = table(run_here(Sweep.from_tree(spec_tree(longer, name="undisturbed"))))
    file = sweep_file(tmp_path, spec_tree(longer))
    for done, interrupt in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), 1):
        process = Forked("-m", "ablate", "sweep", file, cwd=tmp_path, session=True)
        while count_completed() < done:
            assert process.poll() is None
        if interrupt == signal.SIGKILL:
            process.kill()  # the workers see for themselves that the sweep is gone
        else:
            os.killpg(process.pid, interrupt)  # as a terminal and `timeout` do
        begin = time.monotonic()
        told, errors = process.communicate(timeout=60)
        if interrupt != signal.SIGKILL:
            assert time.monotonic() - begin < 30
            assert "be retried" not in told
            assert process.returncode == 130
            assert f"ablate sweep {file}" in errors
            assert "Traceback" not in errors
        while (states := counts(read_sweep("small")))["running"]:  # the worker is still at its checkpoint
            assert time.monotonic() - begin < 60
        assert done <= states["completed"] < 4
    again = Forked("-m", "ablate", "sweep", file, cwd=tmp_path)
    _, errors = again.communicate(timeout=240)
    assert again.returncode == 0, errors
    assert table(read_sweep("small")) == undisturbed


@pytest.mark.parametrize(
    ("numbers", "waits"),
    [
        ([signal.SIGINT], True),
        ([signal.SIGTERM, signal.SIGTERM], True),
        ([signal.SIGHUP, signal.SIGHUP], True),
        ([signal.SIGINT, signal.SIGTERM], True),
        ([signal.SIGINT, signal.SIGINT], False),
        ([signal.SIGTERM, signal.SIGINT], False),
    ],
)
def test_only_a_second_ctrl_c_does_not_wait_for_checkpoints(numbers, waits):
    """`timeout` sends SIGTERM to the sweep and then to its process group."""
    stop = run._Stop()
    for number in numbers:
        stop.note(number, None)
    assert stop.signals == numbers
    assert (stop.presses < 2) == waits


def test_workers_that_cannot_start_end_the_sweep(store, spec, monkeypatch):
    monkeypatch.setattr(run, "POLL", 0.01)
    monkeypatch.setattr(local, "start_process", lambda words, environment, log: Ended(1))
    with pytest.raises(AblateError, match=r"No worker can start: each ends with exit status 1\. See .*small@1-0\.log"):
        run_sweep(spec(), workers=1)


def test_the_message_of_a_worker_is_that_of_the_sweep(store, spec, monkeypatch):
    def start(words, environment, log):
        log.write_text("a warning\nablate work: The disk is full:\n  /data\n")
        return Ended(2)

    monkeypatch.setattr(local, "start_process", start)
    shown = Console(file=io.StringIO(), width=200)
    with pytest.raises(AblateError, match=r"^The disk is full:\n  /data$"):
        run.sweep(spec(), console=shown)


class Ended:
    """A process that has ended."""

    def __init__(self, status):
        self.poll, self.pid = (lambda: status), 0

    def wait(self):
        pass


@pytest.mark.parametrize(("remote", "tries"), [(True, 2), (False, 1)])
def test_a_tracking_server_that_is_away_is_waited_for_by_one_more_trial(store, spec, monkeypatch, remote, tries):
    """A server may come back while that trial waits for it; a full disk does not mend itself."""
    begun = []

    def refuse(self, task, lease):
        begun.append(task.number)
        raise StoreError("No answer.")

    monkeypatch.setattr(Worker, "_call_train", refuse)
    monkeypatch.setattr(tracking, "is_remote", lambda: remote)
    with pytest.raises(StoreError, match=r"No answer.*the same command continues"):
        run_here(spec())
    assert begun == [0] * tries  # the same trial again
    assert counts(read_sweep("small"))["interrupted"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_worker_whose_parent_was_gone_before_it_began_trains_nothing(store, spec):
    title = begin_session(spec(arms={}), storage_url(), False, 1)[0].full_name
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert Worker(title, storage_url(), gone.pid).run() == STOPPED
    assert not load_trials("small@1/all")


def test_a_worker_that_begins_while_the_server_is_away_waits_for_it(store, spec, monkeypatch):
    title = begin_session(spec(arms={}), storage_url(), False, 1)[0].full_name
    load, away = open_queue_of, [1, 1, 1]

    def fail_at_first(*given):
        if away:
            away.pop()
            raise StoreError("cannot be used") from LostConnectionError("refused")
        return load(*given)

    monkeypatch.setattr("ablate.scheduler.worker.open_queue", fail_at_first)
    with pytest.raises(StoreError):  # a file is there or not
        Worker(title, storage_url())
    monkeypatch.setattr("ablate.scheduler.worker.find_file", lambda url: None)
    monkeypatch.setattr("ablate.tracking.databases.AGAIN", 0.0)
    assert Worker(title, storage_url()).full_name == title
    assert not away


def test_a_worker_that_stands_still_holds_up_no_sweep_that_is_over(store, spec, monkeypatch):
    class Still:
        """Workers of which one does not end."""

        count, patience, stopped = 1, 0.0, False

        def start(self, count):
            run_here(spec(arms={}))

        def have_work(self):
            return True

        def is_running(self):
            return False

        def read_lines(self):
            return []

        replace_killed = read_lines

        def stop(self):
            self.stopped = True

        def kill(self):
            assert self.stopped

    class Somewhere:
        pick_threads = staticmethod(lambda workers: 1)
        build_workers = staticmethod(lambda *given: Still())

    monkeypatch.setattr(run, "LINGER", 0.0)
    monkeypatch.setattr(run, "POLL", 0.0)
    monkeypatch.setattr(status, "POLL", 0.0)
    shown = Console(file=io.StringIO(), width=200)
    record = run.sweep(spec(arms={}), console=shown, executor=Somewhere())
    assert counts(record)["completed"] == 2
    assert "A worker that does not end is stopped." in shown.file.getvalue()
