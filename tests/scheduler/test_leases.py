"""Who trains a trial: processes of this machine, of its containers, and of others."""

import os
import subprocess
import sys

import pytest

from ablate.scheduler import leases

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def gone():
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    described = leases.describe_process(process.pid)
    process.communicate()
    return described


@pytest.fixture
def move(monkeypatch):
    """move(namespace=..., boot=...): from now on this process is in another container, or on another machine, of the
    same host name."""

    def apply(namespace=None, boot=None):
        link, read = os.readlink, leases.Path.read_text
        if namespace:
            monkeypatch.setattr(os, "readlink", lambda path: namespace if path.endswith("ns/pid") else link(path))
        if boot:
            monkeypatch.setattr(leases.Path, "read_text", lambda p: boot if p.name == "boot_id" else read(p))
        leases.find_place.cache_clear()

    yield apply
    leases.find_place.cache_clear()


def test_a_process_of_this_machine_is_known_by_its_pid_and_start(gone):
    own = leases.describe_process()
    assert leases.is_alive(own)
    assert not leases.has_ended(own)
    assert leases.has_ended(gone)
    assert leases.has_ended({**own, "started": "1"})  # an earlier process of this pid


@linux
@pytest.mark.parametrize("place", [{"namespace": "pid:[1]"}, {"boot": "another"}], ids=["a container", "a machine"])
def test_of_another_container_or_machine_with_this_host_name_nothing_is_known(gone, move, place):
    """Neither that it has ended, though no process here has its pid, nor that it runs: its lease says."""
    own = leases.describe_process()
    move(**place)
    for process in (own, gone):
        assert not leases.has_ended(process)
        assert not leases.is_alive(process)
    assert leases.is_alive(leases.describe_process())


def test_without_proc_the_pid_has_to_do(gone, monkeypatch):
    own = leases.describe_process()
    monkeypatch.setattr(os, "readlink", lambda path: (_ for _ in ()).throw(FileNotFoundError(path)))
    assert not leases.has_ended(own)
    assert leases.has_ended(gone)


def test_a_process_of_another_user_that_is_hidden_lives(monkeypatch):
    own = leases.describe_process()
    monkeypatch.setattr(os, "readlink", lambda path: "another")  # /proc of the machine, seen from a container

    def refuse(pid, number):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not leases.has_ended(own)
