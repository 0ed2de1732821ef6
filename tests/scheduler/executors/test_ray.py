"""Workers on a real Ray cluster on this machine, whose nodes are killed, and what is said where none can run."""

import _thread
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from forked import read_parents
from run_table import by_arm
from scheduler.small import SILENT, run_sweep, table

from ablate import tracking
from ablate.cli import main
from ablate.config.errors import AblateError, ConfigError
from ablate.scheduler import run
from ablate.scheduler.devices import SHARING
from ablate.scheduler.executors import ray as ray_executor
from ablate.scheduler.executors.ray import LOST, RayCluster, RayWorkers, open_cluster
from ablate.scheduler.executors.ray_task import _KEEPER, WorkerEnd, WorkerOrder, read_version, run_worker
from ablate.scheduler.leases import read_claim, read_owner
from ablate.scheduler.storage import open_storage, storage_url
from ablate.scheduler.studies import list_studies

in_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


# ---------------------------------------------------------------------------------------------------- a real cluster


def list_tree(root):
    """The processes of a node: its raylet, all that this has started, and what those have."""
    found, parents = [root], read_parents()
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


class TwoNodes:
    """A cluster of a head, on which nothing is trained, and two nodes, each with room for two workers."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.add(), self.add()]

    def add(self):
        return self.cluster.add_node(num_cpus=2)

    def find(self, pid):
        """The node on which a process runs; None if it has ended."""
        return next((node for node in self.nodes if pid in list_tree(self.get_raylet(node))), None)

    def get_raylet(self, node):
        return node.all_processes["raylet"][0].process.pid

    def kill(self, node):
        """Ends a node at once, as a machine that is switched off."""
        self.nodes.remove(node)
        stopped = []  # before any is killed, so that none starts another meanwhile
        while running := [pid for pid in list_tree(self.get_raylet(node)) if pid not in stopped]:
            for pid in running:
                os.kill(pid, signal.SIGSTOP)
            stopped += running
        for pid in stopped:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def two_nodes(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = TwoNodes()
    yield nodes
    nodes.cluster.shutdown()


def list_trials(storage):
    """The trials of the sweep, of all its studies."""
    studies = [study for study in list_studies(storage) if study.startswith("small@")]
    return [trial for study in studies for trial in storage.get_all_trials(storage.get_study_id_from_name(study))]


def find_training(storage):
    """A running trial and the process that trains it, which is stopped for the moment; None if there is none."""
    for trial in list_trials(storage):
        owner = read_owner(trial)
        if trial.state.name == "RUNNING" and "pid" in owner:
            try:
                os.kill(owner["pid"], signal.SIGSTOP)
            except ProcessLookupError:  # it was killed with its node
                continue
            again = storage.get_trial(trial._trial_id)  # read now, when nothing can happen to it
            if again.state.name == "RUNNING" and read_owner(again) == owner:
                return again, owner["pid"]
            os.kill(owner["pid"], signal.SIGCONT)
    return None


@contextmanager
def meanwhile(monkeypatch, act):
    """Within, `act` is called at each look at the workers until it returns true."""
    plain, done = RayWorkers.replace_killed, []

    def replace_killed(self):
        if not done and act():
            done.append(True)
        return plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(RayWorkers, "replace_killed", replace_killed)
        yield
    assert done


def run_on(nodes, spec):
    """The record of a sweep by two workers."""
    with open_cluster(nodes.cluster.address, 1, 0, None) as executor:
        return run.sweep(spec, workers=2, console=SILENT, executor=executor)


def list_seeds(record, arm):
    """The runs of an arm on further seeds."""
    return [(run.status, run.params, run.value, run.curve) for run in record.runs.select(arm) if run.stage != "search"]


def count_runs(name):
    """The runs in MLflow that train: searched, selecting and on fresh seeds."""
    client = tracking.client()
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    return sum(run.data.tags["ablate.role"] not in ("arm", "report") for run in runs)


@in_proc
@pytest.mark.chaos
def test_a_node_killed_in_the_middle_costs_no_trial_and_no_number(two_nodes, spec, undisturbed, monkeypatch):
    storage, killed = open_storage(storage_url(None)), []

    def kill_one():
        if training := find_training(storage):
            trial, pid = training
            killed.append(trial._trial_id)
            two_nodes.kill(two_nodes.find(pid))
        return killed

    with meanwhile(monkeypatch, kill_one):
        record = run_on(two_nodes, spec())
    assert table(record) == undisturbed
    claims = {trial._trial_id: read_claim(trial) for trial in list_trials(storage)}
    assert claims[killed[0]] == 2
    assert count_runs("small") == len(claims) == sum(map(len, by_arm(record).values()))


@in_proc
@pytest.mark.chaos
def test_nodes_that_come_and_go_and_ctrl_c_cost_nothing(two_nodes, store, spec, monkeypatch):
    """Ctrl-C; then one node after the other is killed, at its start or while it trains, and replaced."""
    storage, kills = open_storage(storage_url(None)), []
    more = {"confirm": {"seeds": 5, "selection_seeds": 1}}  # enough to do until three nodes were killed
    plain = run_sweep(spec(name="plain", **more))

    def kill_two():
        if not kills:  # before any worker has taken a trial
            kills.append(two_nodes.nodes[0])
        elif (training := find_training(storage)) and (node := two_nodes.find(training[1])):
            kills.append(node)
        else:
            return False
        two_nodes.kill(kills[-1])
        two_nodes.nodes.append(two_nodes.add())
        return len(kills) == 3

    def interrupt():
        running = [trial for trial in list_trials(storage) if trial.state.name == "RUNNING"]
        if running:
            os.kill(os.getpid(), signal.SIGINT)
        return running

    with meanwhile(monkeypatch, interrupt), pytest.raises(KeyboardInterrupt):
        run_on(two_nodes, spec(**more))
    for trial in list_trials(storage):
        assert trial.state.name != "RUNNING" or "pid" not in read_owner(trial)  # let go, with a checkpoint
    with meanwhile(monkeypatch, kill_two):
        record = run_on(two_nodes, spec(**more))
    assert table(record) == table(plain)
    assert [list_seeds(record, arm) for arm in by_arm(record)] == [list_seeds(plain, arm) for arm in by_arm(plain)]
    assert count_runs("small") == len(list_trials(storage)) == count_runs("plain")


# ---------------------------------------------------------------------------------------------------- one task


@pytest.fixture
def order(tmp_path):
    def build(**more):
        plain = {
            "title": "small",
            "folder": str(tmp_path),
            "environment": {},
            "log": str(tmp_path / "logs" / "worker.log"),
            "version": read_version(),
            "host": None,
        }
        return WorkerOrder(**{**plain, **more})

    return build


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(script): takes the place of Python in tasks."""

    def write(script):
        file = tmp_path / "program"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(file))

    return write


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_a_task_returns_how_its_worker_ended(order, program, script, status):
    program(script)
    assert run_worker(order()) == WorkerEnd(status, socket.gethostname())


def test_a_worker_gets_its_command_and_environment(order, program, tmp_path):
    program('echo "$@ $ONE" > arguments')
    run_worker(order(environment={"ONE": "1"}))
    assert (tmp_path / "arguments").read_text() == f"-m ablate work small --parent {os.getpid()} 1\n"


def test_the_message_of_a_worker_comes_back(order, program):
    program('echo "a warning" >&2; echo "ablate work: A plugin of small has changed. Restore it." >&2; exit 2')
    end = run_worker(order())
    assert (end.status, end.error) == (2, f"On {socket.gethostname()}: A plugin of small has changed. Restore it.")


@pytest.fixture
def wait_and_cancel(program, tmp_path):
    """Waits until a worker runs, which goes on until it is stopped and then writes the file `stopped`, and cancels its
    task as Ray does, by an interrupt."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell in the background has ignored
    os.mkfifo(tmp_path / "ready")
    program("trap 'echo > stopped; exit 130' TERM; echo > ready; while :; do sleep 0.05; done")

    def cancel():
        (tmp_path / "ready").read_text()
        _thread.interrupt_main()

    yield cancel
    signal.signal(signal.SIGINT, before)


def test_a_cancelled_task_ends_when_its_worker_has_stopped(order, wait_and_cancel, tmp_path):
    threading.Thread(target=wait_and_cancel).start()
    with pytest.raises(KeyboardInterrupt):
        run_worker(order())
    assert (tmp_path / "stopped").exists()


def test_a_task_that_is_cancelled_while_its_worker_starts_stops_it(order, wait_and_cancel, tmp_path, monkeypatch):
    start = subprocess.Popen

    def start_and_cancel(*arguments, **options):
        process = start(*arguments, **options)
        wait_and_cancel()
        return process

    monkeypatch.setattr(subprocess, "Popen", start_and_cancel)
    with pytest.raises(KeyboardInterrupt):
        run_worker(order())
    assert (tmp_path / "stopped").exists()


def test_a_keeper_that_is_stopped_before_it_has_a_worker_stops_it():
    early = _KEEPER.replace('"$@"', 'kill -TERM $$\n"$@"', 1)
    assert subprocess.run(["sh", "-c", early, "sh", "sleep", "60"], timeout=30).returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": "0.0.1"}, r"has Ablate \S+, and the command is that of 0\.0\.1\. Install one version"),
        ({"host": "laptop"}, "cannot reach the databases, which are on laptop alone. Use databases that both reach"),
        ({"folder": "/nowhere"}, "has no folder /nowhere, in which the paths of the sweep file are looked up"),
    ],
)
def test_a_node_that_cannot_run_workers_says_why(order, program, changed, message):
    program("exit 0")
    end = run_worker(order(**changed))
    assert end.status == 2
    assert re.search(message, end.error)


# ---------------------------------------------------------------------------------------------------- the workers


class Submitted(RayCluster):
    """A cluster that keeps orders, and carries none out."""

    def __init__(self, gpus=0.0):
        super().__init__(1.0, gpus)
        self.orders = []

    def submit(self, order):
        self.orders.append(order)


@pytest.fixture
def end_all(monkeypatch):
    """end_all(end): every task has ended so, and no node is looked at."""

    def end(how):
        monkeypatch.setattr(ray_executor, "_has_ended", lambda slot: True)
        monkeypatch.setattr(ray_executor, "_read_end", lambda slot: how)
        monkeypatch.setattr(ray_executor, "list_nodes", list)

    return end


@pytest.mark.parametrize("status", [LOST, 1])
def test_workers_that_cannot_start_end_the_sweep(store, end_all, status):
    """As where each node that takes one dies at once."""
    workers = RayWorkers(Submitted(), "small", storage_url(None), 1, 1)
    workers.start(1)
    end_all(WorkerEnd(status, "gpu1", "the node died"))
    assert "is replaced" in workers.replace_killed()[-1]
    workers.replace_killed()
    with pytest.raises(AblateError, match="No worker can start: each "):
        workers.replace_killed()


def test_a_killed_worker_is_replaced_and_a_done_sweep_waits_for_no_room(store, end_all):
    cluster = Submitted()
    workers = RayWorkers(cluster, "small", storage_url(None), 2, 1)
    workers.start(1)
    end_all(WorkerEnd(137, "gpu1"))
    for _ in range(5):
        assert workers.replace_killed()[-1] == "Worker 0 was killed by signal 9 on gpu1 and is replaced."
    assert len(cluster.orders) == 6
    assert workers.have_work()
    end_all(WorkerEnd(0, "gpu1"))
    workers.replace_killed()
    assert not workers.have_work()


@pytest.mark.parametrize(("gpus", "sharing"), [(0.0, None), (1.0, None), (0.5, "2"), (0.3, "3")])
def test_workers_that_share_a_gpu_know_how_many_they_are(store, gpus, sharing):
    cluster = Submitted(gpus)
    RayWorkers(cluster, "small", storage_url(None), 1, 4).start(1)
    environment = cluster.orders[0].environment
    assert environment.get(SHARING) == sharing
    assert environment["OMP_NUM_THREADS"] == "4"
    assert environment["ABLATE_STORE"] == str(store)
    assert cluster.orders[0].host == socket.gethostname()  # SQLite


def test_lost_nodes_and_missing_room_are_told(monkeypatch):
    nodes = [build_node(f"gpu{i}", CPU=1.0) | {"NodeID": str(i), "NodeManagerAddress": f"10.0.0.{i}"} for i in range(3)]
    monkeypatch.setattr(ray_executor, "LOOK", 0)
    monkeypatch.setattr(ray_executor, "list_nodes", lambda: nodes)
    look, cluster = ray_executor._Nodes(), RayCluster(1.0, 0.0)
    assert look.describe_changes(2, cluster) == []
    del nodes[1]
    lost = "The node gpu1 (10.0.0.1) was lost. Ray starts its workers again where there is room."
    assert look.describe_changes(2, cluster) == [lost]
    del nodes[0]
    assert look.describe_changes(2, cluster)[1:] == ["The cluster has room for 1 of 2 workers; the others wait."]
    assert look.describe_changes(2, cluster) == []
    first = ray_executor._Nodes().describe_changes(5, cluster)
    assert first == ["The cluster has room for 1 of 5 workers; the others wait."]


# ---------------------------------------------------------------------------------------------------- what is refused


def build_node(host=None, **resources):
    return {"NodeManagerHostname": host or socket.gethostname(), "Resources": resources}


def test_workers_that_fit_on_no_node_are_refused(store):
    nodes = [build_node(CPU=4.0, GPU=1.0), build_node(CPU=8.0)]
    ray_executor.check_request(nodes, 4, 1, None)
    with pytest.raises(ConfigError) as caught:
        ray_executor.check_request(nodes, 16, 1, None)
    assert "--cpus-per-worker: no node of the cluster has so many CPUs: the most on one is 8, not 16" in str(
        caught.value
    )
    with pytest.raises(ConfigError, match="no node of the cluster has 8 CPUs and 1 GPUs together"):
        ray_executor.check_request(nodes, 8, 1, None)
    with pytest.raises(ConfigError, match="--gpus-per-worker: no node of the cluster has so many GPUs"):
        ray_executor.check_request([build_node(CPU=8.0)], 1, 0.5, None)


def test_sqlite_is_refused_where_a_node_is_another_machine(store):
    ray_executor.check_request([build_node(CPU=1.0), build_node(CPU=1.0)], 1, 0, None)
    with pytest.raises(ConfigError) as caught:
        ray_executor.check_request([build_node(CPU=1.0), build_node("gpu1", CPU=1.0)], 2, 0, None)
    told = str(caught.value)
    assert "--storage: several machines cannot share a SQLite file" in told
    assert "MLFLOW_TRACKING_URI: several machines cannot share a SQLite file" in told
    assert "--cpus-per-worker" in told


@pytest.mark.parametrize(("cpus", "gpus", "room"), [(1, 0, 12), (4, 0, 3), (1, 1, 2), (1, 0.25, 8), (0.5, 0.3, 6)])
def test_how_many_workers_a_cluster_has_room_for(cpus, gpus, room):
    assert ray_executor.count_room([build_node(CPU=8.0, GPU=2.0), build_node(CPU=4.0)], cpus, gpus) == room


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["--address", "auto", "--cpus-per-worker", "2"], ["--address: needs --executor ray (given: 'auto')",
                                                           "--cpus-per-worker: needs --executor ray (given: 2.0)"]),
        (["--executor", "ray", "--workers-per-gpu", "2", "--submit", "cluster=local"],
         ["--submit: cannot be combined with --executor ray", "--workers-per-gpu: cannot be combined with"]),
        (["--executor", "ray", "--gpus-per-worker=2"],
         ["--gpus-per-worker: must be a number from 0 to 1, given 2: a worker is one process"]),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_told_at_once(capsys, words, messages):
    try:
        status = main(["sweep", "demo", *words])
    except SystemExit as end:
        status = end.code
    told = capsys.readouterr().err
    assert status == 2
    for message in messages:
        assert message in told


def test_without_ray_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["sweep", "demo", "--executor", "ray"]) == 2
    assert "pip install '.[ray]'" in capsys.readouterr().err


def find_free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_addresses_at_which_there_is_no_cluster(monkeypatch, capsys):
    pytest.importorskip("ray")
    port = find_free_port()
    for address, message in (
        (f"127.0.0.1:{port}", f"No Ray cluster answers at 127.0.0.1:{port}: [Errno 111] Connection refused."),
        (f"ray://127.0.0.1:{port}", f"No Ray cluster answers at ray://127.0.0.1:{port}"),
        ("nowhere.invalid:6379", "No Ray cluster answers at nowhere.invalid:6379"),
        ("127.0.0.1", "--address 127.0.0.1 is not an address of a Ray cluster. Accepted: HOST:PORT"),
        ("http://127.0.0.1:8265", "An http address is that of `ray job submit`"),
    ):
        assert main(["sweep", "demo", "--executor", "ray", "--address", address]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "laptop")
    assert main(["sweep", "demo", "--executor", "ray"]) == 2
    assert "laptop is not an address" in capsys.readouterr().err


LISTENER = """
import sys
from ablate.cli import main
from ablate.scheduler.executors import ray as ray_executor
ray_executor.START = 0.5
sys.exit(main(["sweep", "demo", "--executor", "ray", "--address", sys.argv[1]]))
"""


def test_what_listens_and_is_no_cluster_is_given_up(tmp_path):
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-c", LISTENER, address]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"What listens at {address} is no Ray cluster, or does not answer" in done.stderr
    assert "Traceback" not in done.stderr


def test_versions_that_differ_are_told(monkeypatch):
    """By the error that Ray itself raises."""
    pytest.importorskip("ray")
    from ray._private.utils import check_version_info

    with pytest.raises(RuntimeError) as caught:
        check_version_info({"ray_version": "2.9.0", "python_version": "3.9.1"}, "10.0.0.2")
    told = ray_executor._describe_failure("10.0.0.1:6379", caught.value)
    assert re.fullmatch(
        r"The cluster has Ray 2\.9\.0 with Python 3\.9\.1 and this command has Ray \S+ with Python 3\.\S+\. "
        r"Install the same versions here\.",
        told,
    )
