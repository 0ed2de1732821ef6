"""Sweeps that are stopped, killed or cut off: nothing is lost or run twice, and they end as undisturbed ones."""

import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import optuna
import pytest
import yaml
from forked import Forked
from rich.console import Console
from sqlalchemy import text
from sweeps.small import run_sweep, spec_tree, table

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.reports.findings import list_cautions
from ablate.sweeps import run
from ablate.sweeps.arms import ArmTrials
from ablate.sweeps.attempts import read_trial_notes
from ablate.sweeps.heartbeats import _read_start_time, describe_process
from ablate.sweeps.status import read_statuses
from ablate.sweeps.storage import create_study, name_study, open_storage, read_sweep, read_trials, storage_url


def test_a_confirmation_that_was_stopped_goes_on(store, spec, monkeypatch):
    settings = {"arms": {"pre": {"norm": "pre"}}, "budget": {"trials": 1}, "confirm": {"seeds": 2}}
    plain = run_sweep(spec(name="plain", **settings), workers=1)
    hear = run._Runner._hear

    def stop(self, job):
        hear(self, job)
        if job.arm.role == "confirmation" and job.trial.study.trials[job.trial.number].intermediate_values:
            self.stopping = 1

    with monkeypatch.context() as patch:
        patch.setattr(run._Runner, "_hear", stop)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(spec(**settings), workers=1)
    assert read_sweep("small").confirmed["pre"][0].status == "interrupted"
    record = run_sweep(spec(**settings), workers=1)
    assert [(t.params, t.value, t.curve) for t in record.confirmed["pre"]] == [
        (t.params, t.value, t.curve) for t in plain.confirmed["pre"]
    ]


def test_a_confirmation_that_fails_is_told(store, spec, monkeypatch):
    settings = {"arms": {}, "budget": {"trials": 1}, "confirm": {"seeds": 1}}
    start = run._Runner._start

    def start_and_kill(self, arm, trial):
        start(self, arm, trial)
        if arm.role == "confirmation":
            next(reversed(self.jobs.values())).worker.kill()

    monkeypatch.setattr(run._Runner, "_start", start_and_kill)
    record = run_sweep(spec(**settings), workers=1)
    assert (record.counts()["failed"], record.count_failed()) == (0, 1)
    assert read_statuses("small")[0]["failures"] == ["seed 1: its process was killed by signal 9, 3 times"]
    notes = list_cautions(record)
    assert any(note.startswith("1 fresh seed of all crashed, which is not an outcome") for note in notes)
    assert any("all 0 are done" in note for note in notes)


def test_a_killed_worker_is_replaced_and_the_results_are_those_of_an_undisturbed_sweep(
    store, undisturbed, spec, monkeypatch
):
    start, killed = run._Runner._hear, []

    def kill_first(self, job):
        start(self, job)
        job_lives = job.connection in self.jobs
        if not killed and job_lives and len(job.trial.study.trials[job.trial.number].intermediate_values) == 2:
            killed.append(job.worker.process.pid)
            os.kill(job.worker.process.pid, signal.SIGKILL)

    monkeypatch.setattr(run._Runner, "_hear", kill_first)
    shown = Console(file=io.StringIO(), width=200)
    record = run.sweep(spec(), workers=1, console=shown)
    assert killed
    assert "pre #0 resumed at update 4/" in shown.file.getvalue()
    assert [t.number for t in record.trials["pre"]] == [0, 1]
    assert tracking.client().get_run(record.trials["pre"][0].run_id).info.run_name == "pre #0"
    assert table(record) == undisturbed
    study = optuna.load_study(study_name=name_study("small", 1, "pre"), storage=open_storage(storage_url()))
    assert "killed by signal 9" in read_trial_notes(study.trials[0])["reason"]


def test_a_worker_that_is_killed_between_two_trials_costs_none(store, undisturbed, spec, monkeypatch):
    close = run._Runner._close

    def close_and_kill(self, job, text, finished):
        close(self, job, text, finished)
        job.worker.kill()
        job.worker.process.join()

    monkeypatch.setattr(run._Runner, "_close", close_and_kill)
    record = run_sweep(spec(), workers=1)
    assert table(record) == undisturbed
    studies = [optuna.load_study(study_name=name_study("small", 1, arm), storage=open_storage(storage_url()))
               for arm in record.trials]  # fmt: skip
    assert sum(len(study.trials) for study in studies) == 4  # none was tried again


def test_a_disk_that_fails_stops_the_sweep_and_costs_no_trial(store, undisturbed, spec):
    shutil.rmtree(store / "runs", ignore_errors=True)
    (store / "runs").touch()  # nothing can be written below it
    with pytest.raises(StoreError, match=r"runs/.* cannot be created.*the same command continues"):
        run_sweep(spec())
    assert read_sweep("small").counts()["failed"] == 0
    (store / "runs").unlink()
    assert table(run_sweep(spec())) == undisturbed


def test_what_a_killed_sweep_did_not_hear_is_made_up_for(store, undisturbed, spec, monkeypatch):
    """Its workers ran on for a moment: the run that they started and their validations are in MLflow, not in Optuna."""
    hear = run._Runner._hear

    def deaf(self, job):
        hear(self, job)
        if len(job.trial.study.trials[job.trial.number].intermediate_values) == 2:
            self.stopping = 1

    with monkeypatch.context() as patch:
        patch.setattr(run._Runner, "_hear", deaf)
        with pytest.raises(KeyboardInterrupt):
            run_sweep(spec(), workers=1)
    study = optuna.load_study(study_name=name_study("small", 1, "pre"), storage=open_storage(storage_url()))
    waiting = study.trials[-1]
    assert waiting.state.name == "WAITING"
    for key in ("run_id", "curve"):
        study._storage.set_trial_user_attr(waiting._trial_id, key, None if key == "run_id" else {})
    assert table(run_sweep(spec(), workers=1)) == undisturbed
    experiment = tracking.client().get_experiment_by_name("small").experiment_id
    runs = tracking.client().search_runs([experiment], "tags.`ablate.role` = 'trial'")
    assert sorted(r.info.run_name for r in runs) == ["mix #0", "mix #1", "pre #0", "pre #1"]


def test_a_worker_that_is_killed_every_time_counts_as_failed(store, spec, monkeypatch):
    start = run._Runner._start

    def start_and_kill(self, arm, trial):
        start(self, arm, trial)
        next(reversed(self.jobs.values())).worker.kill()

    monkeypatch.setattr(run._Runner, "_start", start_and_kill)
    record = run_sweep(spec(arms={}, budget={"trials": 1}), workers=1)
    (trial,) = record.trials["all"]
    assert trial.status == "failed"
    assert "killed by signal 9, 3 times" in trial.reason


@pytest.mark.parametrize("how", [os.WNOWAIT, 0], ids=["nobody asked how it ended", "reaped"])
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_trials_of_a_sweep_that_was_killed_are_taken_up(store, spec, how):
    sweep = spec(arms={}, budget={"trials": 1})
    study = optuna.create_study(study_name=name_study("small", 1, "all"), storage=open_storage(storage_url()))
    study.set_user_attr("spec", sweep.to_tree())
    arm = ArmTrials(study, sweep, "all", "")
    trial = arm.ask()
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    trial.set_user_attr("owner", {**describe_process(), "pid": gone.pid, "started": _read_start_time(gone.pid)})
    assert [row["running"] for row in read_statuses("small")] == [1]
    gone.stdin.close()
    os.waitid(os.P_PID, gone.pid, os.WEXITED | how)
    assert [row["interrupted"] for row in read_statuses("small")] == [1]
    record = run_sweep(sweep)
    assert [(t.status, t.params) for t in record.trials["all"]] == [("completed", trial.params)]


def test_a_trial_of_a_living_sweep_is_left_alone(store, spec):
    sweep = spec(arms={}, budget={"trials": 1})
    study = optuna.create_study(study_name=name_study("small", 1, "all"), storage=open_storage(storage_url()))
    study.set_user_attr("spec", sweep.to_tree())
    arm = ArmTrials(study, sweep, "all", "")
    arm.ask()
    assert arm.recover() == 0
    assert [r.status for r in read_trials(study.get_trials(), "all")] == ["running"]
    assert arm.tally().open == 0


def test_a_trial_of_a_machine_that_fell_silent_is_taken_up(store, spec):
    sweep = spec(arms={}, budget={"trials": 1})
    storage = open_storage(storage_url())
    study = create_study(storage, name_study("small", 1, "all"), sweep)
    arm = ArmTrials(study, sweep, "all", "")
    trial = arm.ask()
    trial.set_user_attr("owner", {"host": "elsewhere", "pid": 1, "started": "1"})
    assert arm.recover() == 0
    with storage._backend.engine.begin() as connection:  # its last sign of life was an hour ago
        connection.execute(text("UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-1 hour')"))
    record = run_sweep(sweep)
    (found,) = record.trials["all"]
    assert (found.number, found.status, found.params) == (0, "completed", trial.params)
    assert [t.state.name for t in study.trials] == ["FAIL", "COMPLETE"]


def test_what_a_machine_that_was_out_of_reach_found_is_dropped(store, spec, monkeypatch):
    """Another has taken up its trial in the meantime; it goes on with what is left."""
    hear = run._Runner._hear
    taken = []

    def taken_up(self, job):
        if not taken and job.arm.tally().running:
            taken.append(job.trial.number)
            job.arm.requeue(job.trial, "its machine fell silent")
        hear(self, job)

    monkeypatch.setattr(run._Runner, "_hear", taken_up)
    shown = Console(file=io.StringIO(), width=200)
    record = run.sweep(spec(arms={}), workers=1, console=shown)
    assert "taken over by another machine" in shown.file.getvalue()
    assert [t.status for t in record.trials["all"]] == ["completed", "completed"]


def sweep_file(tmp_path, tree):
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def test_a_stopped_command_is_continued_by_the_same_command(store, undisturbed, spec, tiny_settings, tmp_path):
    """By Ctrl-C, then by SIGTERM, then by SIGKILL, each in the middle of a trial."""
    file = sweep_file(tmp_path, spec_tree(tiny_settings))
    for done, interrupt in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), 1):
        process = Forked("-m", "ablate", "sweep", file, cwd=tmp_path, session=True)
        for line in process.stdout:
            if line.startswith(f"[{done}/4]"):
                break
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
        counts = read_sweep("small").counts()
        assert done <= counts["completed"] < 4
        assert counts["running"] == 0
    again = Forked("-m", "ablate", "sweep", file, cwd=tmp_path)
    _, errors = again.communicate(timeout=240)
    assert again.returncode == 0, errors
    assert table(read_sweep("small")) == undisturbed


def test_a_stop_while_the_workers_server_starts_is_a_stop(store, spec, monkeypatch):
    def stopped(*_):
        os.kill(os.getpid(), signal.SIGINT)
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(run, "Worker", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec())
    assert read_sweep("small").counts()["interrupted"] == 1


@pytest.mark.parametrize(
    ("numbers", "waits"),
    [
        ([signal.SIGINT], True),
        ([signal.SIGTERM, signal.SIGTERM], True),
        ([signal.SIGINT, signal.SIGTERM], True),
        ([signal.SIGINT, signal.SIGINT], False),
        ([signal.SIGTERM, signal.SIGINT], False),
    ],
)
def test_only_a_second_ctrl_c_does_not_wait_for_checkpoints(numbers, waits):
    """`timeout` sends SIGTERM to the sweep and then to its process group."""
    runner = run._Runner.__new__(run._Runner)
    runner.stopping, runner.signals = 0, []
    for number in numbers:
        runner._stop(number, None)
    assert runner.signals == numbers
    assert (runner.stopping < 2) == waits


def test_a_server_that_dies_is_told(store, spec, monkeypatch):
    def dead(*_):
        raise EOFError("unexpected EOF")

    monkeypatch.setattr(run, "Worker", dead)
    with pytest.raises(StoreError, match="No worker process could be started"):
        run_sweep(spec())
    assert read_sweep("small").counts()["running"] == 0


@pytest.mark.parametrize(("remote", "tries"), [(True, 2), (False, 1)])
def test_a_tracking_server_that_is_away_is_waited_for_by_one_more_trial(store, spec, monkeypatch, remote, tries):
    """A server may come back while that trial waits for it; a full disk does not mend itself."""
    begun = []

    class Away:
        lasts = False

        def __init__(self, *_):
            self.connection, self.other = multiprocessing.Pipe()

        def begin(self, *_):
            begun.append(self)
            self.other.send(("away", "No answer."))

        def dismiss(self):
            self.connection.close()

    monkeypatch.setattr(run, "Worker", Away)
    monkeypatch.setattr(run, "start_server", lambda threads: None)
    monkeypatch.setattr(tracking, "is_remote", lambda: remote)
    with pytest.raises(StoreError, match=r"No answer.*the same command continues"):
        run_sweep(spec(), workers=1)
    assert len(begun) == tries
    assert read_sweep("small").counts()["interrupted"] == 1  # the same trial again
