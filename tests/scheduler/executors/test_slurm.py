"""`--submit`: jobs of submitit's local executor, and of a Slurm whose commands are stand-ins."""

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from run_table import counts

from ablate.cli import main
from ablate.config.errors import AblateError, ConfigError, SweepError
from ablate.scheduler import devices
from ablate.scheduler.executors import slurm as submitting
from ablate.scheduler.executors.slurm import SweepJob, check_parameters, submit
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.sweeps.spec.sweep import Sweep

submitit = pytest.importorskip("submitit")
ROOT = Path(__file__).parents[3]
SBATCH = """#!/bin/sh
cp "$1" {folder}/submitted.sh
echo "Submitted batch job 4711"
"""


@pytest.fixture
def tree(tiny_settings):
    return {
        "name": "sent",
        "experiment": tiny_settings,
        "arms": {"pre": {"norm": "pre"}},
        "search": {"optimizer.lr": [1e-3, 1e-2]},
        "sampler": "grid",
    }


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A PATH with Slurm's commands; the folder that they write to."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun"):
        (folder / name).write_text(SBATCH.format(folder=folder))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_local_jobs_run_a_sweep_to_its_end(store, tree, tmp_path, monkeypatch, capsys):
    """As in docs/how-to/cluster.md: the command returns, the job goes on. That several share a sweep is tested in
    test_processes.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    Path("my.yaml").write_text(yaml.safe_dump(tree))
    kept = []
    monkeypatch.setattr(submitting, "submit", lambda *a, **k: kept.append(submit(*a, **k)) or kept[0])
    changes = ["confirm.seeds=1", "confirm.candidates=1"]
    assert main(["sweep", "my.yaml", "--submit", "cluster=local", "--workers", "1", *changes]) == 0
    told = capsys.readouterr().out
    assert counts(read_sweep("sent"))["completed"] < 2
    Path("my.yaml").write_text("what was submitted does not change")
    assert [job.result() for job in kept[0].jobs] == [0]
    record = read_sweep("sent")
    assert counts(record)["completed"] == 2
    assert [t.seed for t in record.fresh("pre")] == [1]
    assert (store / "reports" / "sent" / "report.json").exists()
    assert "1 job of sent@1 submitted (local): " + " ".join(job.job_id for job in kept[0].jobs) in told
    assert "ablate status sent@1" in told
    logs = [Path(job.paths.stdout) for job in kept[0].jobs]
    assert {log.parent.parent for log in logs} == {store / "submitted"}
    assert kept[0].folder.stat().st_mode & 0o077 == 0  # the storage's password may be in it


def test_a_command_that_is_read_through_a_pipe_returns_at_once(store, tree, tmp_path):
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(tree))
    command = [sys.executable, "-m", "ablate", "sweep", "my.yaml", "--submit", "cluster=local"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, re.sub("^validation: .*\n", "", done.stderr)) == (0, "")
    assert counts(read_sweep("sent"))["completed"] < 2  # it is still going on
    controller = int(done.stdout.split("\n")[0].rpartition(" ")[2])
    os.kill(controller, signal.SIGINT)  # what the printed command does


def test_what_slurm_is_given(store, tree, slurm, monkeypatch):
    url = f"sqlite:///{store / 'optuna.db'}"
    monkeypatch.setattr(submitting, "validate_databases", lambda storage: [])
    words = {"slurm.partition": "gpu", "timeout_min": 600, "gpus_per_node": 1, "cpus_per_task": 3, "mem_gb": 1.5}
    made = submit(Sweep.from_tree(tree), words, workers=3, storage=url)
    script = (slurm / "submitted.sh").read_text()
    for line in ("partition=gpu", "time=600", "gpus-per-node=1", "cpus-per-task=3", "mem=1536MB", "signal=USR2@90"):
        assert f"#SBATCH --{line}\n" in script
    assert "#SBATCH --array=0-2%3\n" in script
    assert "#SBATCH --job-name=sent@1\n" in script
    assert "4711_0 4711_1 4711_2" in str(made)
    assert "stop:    scancel 4711" in str(made)
    assert f"ablate status sent@1 --storage {url}" in str(made)
    study = open_storage(url).get_study_id_from_name("sent@1/pre")
    assert open_storage(url).get_study_user_attrs(study)["threads"] == 3  # whatever the first job finds


def test_passwords_are_not_printed():
    made = submitting.Submitted("sent", "slurm", Path("logs"), [], "postgresql://me:secret@db/ablate")
    assert "secret" not in str(made)
    assert "postgresql://me:***@db/ablate" in str(made)


def test_all_mistakes_are_told_at_once(store, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError) as caught:
        check_parameters({"slurm.partitoin": "gpu", "mem_gb": "much", "cpus_per_task": True, "nodes": 2}, None)
    told = str(caught.value)
    assert "cluster: slurm is not available on this machine" in told
    assert "Available here: local" in told
    assert "--storage: several machines cannot share a SQLite file" in told
    assert "MLFLOW_TRACKING_URI: several machines cannot share a SQLite file" in told
    assert "slurm.partitoin: unknown key. Did you mean slurm.partition?" in told
    assert "mem_gb: expected a number of at least 0 (given: 'much')" in told
    assert "cpus_per_task: expected a whole number" in told
    assert "nodes: unknown key" in told
    assert "timeout_min: missing" in told
    assert told.count("Accepted are, for slurm: cluster, name, timeout_min, mem_gb") == 1
    with pytest.raises(ConfigError, match=r"cluster: unknown cluster\. Accepted: .*slurm"):
        check_parameters({"cluster": "cloud"}, None)
    with pytest.raises(ConfigError, match=r"slurm\.partition: unknown key"):
        check_parameters({"cluster": "local", "slurm.partition": "gpu"}, None)


def test_without_submitit_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(AblateError, match=r"pip install '\.\[cluster\]'"):
        check_parameters({"cluster": "local"}, None)


def test_a_mistake_is_found_before_anything_is_submitted(store, tree, monkeypatch):
    monkeypatch.setattr(submitting, "_submit_jobs", lambda *_: [])
    submit(Sweep.from_tree(tree), {"cluster": "local"})
    changed = Sweep.from_tree({**tree, "search": {"optimizer.lr": [1e-3]}})
    monkeypatch.setattr(submitting, "_submit_jobs", lambda *_: pytest.fail("submitted"))
    with pytest.raises(SweepError, match="started with another sweep file"):
        submit(changed, {"cluster": "local"})
    with pytest.raises(ConfigError, match="unknown metric"):
        submit(Sweep.from_tree({**tree, "name": "other", "objective": {"metric": "x"}}), {"cluster": "local"})
    assert len(list((store / "submitted").iterdir())) == 1


@pytest.mark.parametrize("early", [False, True])
def test_a_preempted_job_stops_its_worker_and_is_submitted_again(tmp_path, monkeypatch, early):
    """submitit calls `checkpoint` from a signal handler in the midst of the job; early: before the thread that starts
    the worker is known to the job."""
    stopped = tmp_path / "stopped"
    script = f"trap 'echo > {stopped}; exit 130' TERM; kill -USR2 {os.getpid()}; while :; do sleep 0.05; done"
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **more: popen(["sh", "-c", script], **more))
    if early:
        before_waiting = ThreadPoolExecutor.submit

        def submit_and_wait(*given):
            before_waiting(*given)
            threading.Event().wait(60)  # until the signal, whose handler ends the job

        monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_and_wait)
    job, again = SweepJob("sent", str(tmp_path), {"ABLATE_STORE": "here"}), []

    def preempted(*_):
        again.append(job.checkpoint())
        assert stopped.exists()  # before the job goes into the queue
        raise SystemExit

    before = signal.signal(signal.SIGUSR2, preempted)
    try:
        with pytest.raises(SystemExit):
            job()
    finally:
        signal.signal(signal.SIGUSR2, before)
    restored = pickle.loads(pickle.dumps(again[0].function))  # noqa: S301 - our own
    assert restored == SweepJob("sent", str(tmp_path), {"ABLATE_STORE": "here"})


def test_a_worker_that_cannot_run_makes_its_job_fail(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(AblateError, match="exit status 2"):
        SweepJob("none", str(tmp_path), {"ABLATE_STORE": str(tmp_path)})()


@pytest.mark.parametrize(
    ("visible", "gpus", "workers", "expected"),
    [
        (None, 4, 2, ["0,1", "2,3"]),
        (None, 2, 4, ["0", "1", "0", "1"]),
        (None, 3, 2, ["0", "1"]),
        ("GPU-8a,GPU-1f", 2, 2, ["GPU-8a", "GPU-1f"]),
        ("3,5", 2, 1, ["3,5"]),
        (None, 0, 2, [None, None]),
        ("", 0, 1, [None]),
    ],
)
def test_workers_share_the_gpus(monkeypatch, visible, gpus, workers, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    given = [devices.pick_devices(slot, workers) for slot in range(workers)]
    assert [own.visible for own in given] == expected
    monkeypatch.setenv(devices.SHARING, "3")  # jobs of this machine that have the same
    shared = [devices.pick_devices(slot, workers).sharing for slot in range(workers)]
    assert shared == [own.sharing * (3 if gpus else 1) for own in given]


def test_a_plain_postgresql_address_takes_the_driver_that_is_installed(monkeypatch):
    for there, expected in ((["psycopg2"], "psycopg2"), (["psycopg", "psycopg2"], "psycopg")):
        monkeypatch.setattr("ablate.tracking.databases.find_spec", lambda name, there=there: name in there)
        for scheme in ("postgres", "postgresql"):
            assert storage_url(f"{scheme}://me@db/x") == f"postgresql+{expected}://me@db/x"
    assert storage_url("postgresql+pg8000://me@db/x") == "postgresql+pg8000://me@db/x"
    monkeypatch.setattr("ablate.tracking.databases.find_spec", lambda name: None)
    assert storage_url("postgres://me@db/x") == "postgresql://me@db/x"
