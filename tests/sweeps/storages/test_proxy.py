"""The proxy: its lock, what is written when it is lost, and what is refused.

Clients are processes of their own: one that uses gRPC must not be forked, as other tests fork this one.
"""

import multiprocessing
import sys
import threading

import optuna
import pytest
from forked import Forked
from sweeps.test_storages import File, Proxy

from ablate.config.errors import AblateError, StoreError
from ablate.sweeps.storage import open_storage
from ablate.sweeps.storage_lock import do_locked
from ablate.tracking.databases import LostConnectionError

pytest.importorskip("grpc")
from ablate.sweeps.storages.proxy import parse_address
from ablate.sweeps.storages.proxy_server import WAITING, ProxyLock

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def database(tmp_path):
    return File(f"sqlite:///{tmp_path / 'optuna.db'}")


@pytest.fixture
def proxy(database, tmp_path):
    made = Proxy(database, tmp_path)
    yield made
    made.close()


def start(action, *arguments):
    """A process that calls `action` with a pipe and `arguments`, and our end of the pipe."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=action, args=(theirs, *arguments))
    process.start()
    return process, ours


# ---------------------------------------------------------------------------------------------- through a real one


def add_one(pipe, url):
    """Adds a trial within the lock, and waits there for a word in its first try."""
    study = optuna.load_study(storage=open_storage(url), study_name="s")
    tries = []

    def step():
        tries.append(len(study.get_trials()))
        if len(tries) == 1:
            pipe.send("locked")
            pipe.recv()
        study.enqueue_trial({"x": 1}, user_attrs={"number": len(study.get_trials())})

    do_locked(study._storage, step)
    pipe.send(tries)


def test_the_lock_is_lost_with_the_proxy_and_the_step_begins_anew(proxy, database):
    """What it had seen may no longer hold: another has taken the lock meanwhile, and written."""
    study = optuna.create_study(storage=open_storage(database.url), study_name="s")
    first, pipe = start(add_one, proxy.url)
    assert pipe.recv() == "locked"
    proxy.restart()
    second, other = start(add_one, proxy.url)
    assert other.recv() == "locked"
    other.send("go on")
    assert other.recv() == [0]
    pipe.send("go on")
    assert pipe.recv() == [0, 1]
    for process in (first, second):
        process.join(20)
    assert sorted(trial.user_attrs["number"] for trial in study.get_trials()) == [0, 1]


def test_the_lock_of_a_killed_client_is_free(proxy, database):
    study = optuna.create_study(storage=open_storage(database.url), study_name="s")
    first, pipe = start(add_one, proxy.url)
    assert pipe.recv() == "locked"
    first.kill()
    second, other = start(add_one, proxy.url)
    assert other.recv() == "locked"
    other.send("go on")
    assert other.recv() == [0]
    second.join(20)
    assert len(study.get_trials()) == 1


def run(*words, folder):
    return Forked("-m", "ablate", *words, cwd=folder).communicate(60)


def test_what_cannot_be_used_is_told_in_a_sentence(proxy, tmp_path):
    told = [
        run("proxy", "--storage", f"journal://{tmp_path}/j", folder=tmp_path)[1],
        run("proxy", "--storage", proxy.url, folder=tmp_path)[1],
        run("proxy", "--storage", proxy.database.url, "--port", str(proxy.port), folder=tmp_path)[1],
    ]
    assert "a proxy stands in front of a database" in told[0]
    assert "a proxy stands in front of a database" in told[1]
    busy = f"ablate proxy: 127.0.0.1:{proxy.port} cannot be used, or is in use. Choose another port with --port.\n"
    assert told[2].endswith(busy)  # a process that was forked with gRPC in it lets that log, too


# ---------------------------------------------------------------------------------------------- without a server


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("grpc://127.0.0.1:13001", ("127.0.0.1", 13001)),
        ("grpc://db.example.org", ("db.example.org", 13000)),
        ("grpc://[::1]:13001/", ("[::1]", 13001)),
        ("grpc://", None),
        ("grpc://host:99999", None),
        ("grpc://host:port", None),
        ("grpc://me@host:13000", None),
    ],
)
def test_an_address_is_a_host_and_a_port(url, address):
    if address:
        assert parse_address(url) == address
    else:
        with pytest.raises(StoreError, match="is not the address of a proxy: give grpc://HOST:PORT"):
            parse_address(url)


def test_a_missing_library_is_told_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(AblateError, match=r"pip install '\.\[grpc\]'"):
        open_storage("grpc://127.0.0.1:1")


@pytest.fixture
def lock(database):
    return ProxyLock(open_storage(database.url))


def test_a_call_in_a_lock_that_was_lost_is_refused(lock):
    with lock.hold("first", lambda: True), lock.enter("first"), lock.enter(None):
        pass
    with lock.hold("second", lambda: True):
        for token in ("first", "third"):
            with pytest.raises(LostConnectionError), lock.enter(token):
                raise AssertionError("it was made")


def test_the_next_client_gets_the_lock_when_the_calls_of_the_last_have_ended(lock):
    """A client is killed while its call is written: the next one sees what it wrote."""
    order, inside, go_on = [], threading.Event(), threading.Event()

    def write():
        with lock.enter("first"):
            inside.set()
            go_on.wait(20)
            order.append("written")

    def take():
        with lock.hold("second", lambda: True):
            order.append("taken")

    threads = [threading.Thread(target=write), threading.Thread(target=take)]
    with lock.hold("first", lambda: True):
        threads[0].start()
        inside.wait(20)
        threads[1].start()
        threading.Timer(0.2, go_on.set).start()
    for thread in threads:
        thread.join(20)
    assert order == ["written", "taken"]


def test_a_client_that_has_gone_waits_no_longer(lock):
    with lock.hold("first", lambda: True), pytest.raises(LostConnectionError), lock.hold("second", lambda: False):
        raise AssertionError("it was taken")


def test_the_proxy_lets_only_so_many_wait(lock):
    """Else those that wait would take the threads that the holder's calls need."""
    for _ in range(WAITING):
        lock._waiting.acquire()
    with pytest.raises(BlockingIOError), lock.hold("one more", lambda: True):
        raise AssertionError("it was taken")
