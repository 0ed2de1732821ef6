"""Locks of files: they end with their process, and a file system without them is found out."""

import errno
import fcntl
import multiprocessing
import os
import signal

import pytest

from ablate.scheduler.storages import file_lock
from ablate.scheduler.storages.file_lock import find_lock_failure, hold_file_lock, read_mount

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
    monkeypatch.setattr(file_lock, "read_mount", lambda path: mounted)
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
