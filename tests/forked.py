"""Processes that tests start, and the workers of their sweeps, forked from a server: real processes, which can be
waited for, signalled and killed, but which need not import torch and Lightning, ten seconds of a core each."""

import atexit
import contextlib
import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path

from torch.distributed import TCPStore

from ablate.distributed.launching import SAFE_PATH
from ablate.distributed.ranks import count_cores
from ablate.scheduler.devices import THREADS
from ablate.scheduler.worker import handle_signals
from ablate.tracking.connection import set_environ

STARTED = threading.Lock()  # the server takes one order at a time


def start_server():
    """Returns the context whose processes are forked from a server that has imported everything. It ignores the signals
    that reach a whole process group."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    threads = dict.fromkeys(THREADS, str(count_cores()))
    with set_environ({**threads, **SAFE_PATH}), handle_signals(signal.SIG_IGN):
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def hide_main():
    """Keeps multiprocessing from running pytest's script again in a process that does not need it."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def read_parents():
    """Each process of this machine -> its parent."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    return parents


class ForkedWorker:
    """What takes the place of subprocess.Popen for a worker of a sweep."""

    def __init__(self, words, environment, log):
        context = start_server()
        command = (["-m", "ablate", *words], os.getcwd(), dict(environment), True)
        self._process = context.Process(target=_become_worker, args=(str(log), command))
        with STARTED, hide_main():
            self._process.start()
        self.pid = self._process.pid

    def poll(self):
        """Its exit status; None while it runs."""
        return self._process.exitcode

    def wait(self):
        """Waits until it has ended."""
        self._process.join()

    def send_signal(self, number):
        """Sends it a signal."""
        os.kill(self.pid, number)


def fork_worker(words, environment, log):
    """`ablate.scheduler.executors.local.start_process`, by a fork."""
    return ForkedWorker(words, environment, log)


class Forked:
    """A process that runs `words` as Python's command line would: -m MODULE or a script, and its arguments.

    As of subprocess.Popen: `pid`, `returncode`, `stdout` (text), `poll`, `wait`, `communicate`, `kill`, `send_signal`.

    Args:
        words: the command line, without the interpreter.
        cwd: its current folder.
        env: its environment; by default that of this process.
        session: whether it leads a session, and so a process group, of its own.
        merge: whether its standard error goes where its output goes.
        cores: those that it may use.
    """

    def __init__(self, *words, cwd, env=None, session=False, merge=False, cores=None):
        context = start_server()
        output, theirs = context.Pipe(duplex=False)
        self._errors = None if merge else tempfile.NamedTemporaryFile("r", suffix=".txt")  # noqa: SIM115
        errors = self._errors.name if self._errors else None
        environment = dict(os.environ if env is None else env)
        command = ([str(word) for word in words], str(cwd), environment, session)
        self._process = context.Process(target=_become, args=(theirs, errors, cores, command))
        with STARTED, hide_main():
            self._process.start()
        theirs.close()
        self.pid = self._process.pid
        self.stdout = os.fdopen(os.dup(output.fileno()))
        output.close()

    @property
    def returncode(self):
        """Its exit status, negative where a signal ended it; None while it runs."""
        return self._process.exitcode

    poll = returncode.fget

    def wait(self, timeout=None):
        """Waits until it has ended; its exit status."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def communicate(self, timeout):
        """The rest of its output and its standard error, once it has ended; it is killed after `timeout` seconds."""
        timer = threading.Timer(timeout, self.kill)
        timer.start()
        with self.stdout:
            output = self.stdout.read()
        timer.cancel()
        self.wait(10)
        return output, self.read_errors()

    def read_errors(self):
        """What it has written to its standard error so far."""
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return self._errors.read()

    def send_signal(self, number):
        """Sends it a signal."""
        os.kill(self.pid, number)

    def kill(self):
        """Ends it wherever it is."""
        if self.poll() is None:
            self._process.kill()


def run_ranks(*words, cwd, seconds, count=2, nodes=1):
    """Runs `words` in a group of `count` processes, with the store and the environment that torchrun gives them, as on
    so many `nodes`: the exit status, the output and the errors of each, rank 0 first."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # which outlives the ranks
    group = {
        "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count // nodes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port,
        "TORCHELASTIC_RUN_ID": "tests", "TORCHELASTIC_USE_AGENT_STORE": True, "OMP_NUM_THREADS": 1,
    }  # fmt: skip
    ranks = []
    for rank in range(count):
        own = {key: str(value) for key, value in {**group, "RANK": rank, "LOCAL_RANK": rank % (count // nodes)}.items()}
        ranks.append(Forked(*words, cwd=cwd, env={**os.environ, **own}))
    told = [rank.communicate(seconds) for rank in ranks]
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, told, strict=True)]


class _Fork(subprocess.Popen):
    """Takes the place of subprocess.Popen in a forked process: what that starts in Python, such as torchrun and its
    ranks, is forked too, unless a database is open, which must not be carried across. It replaces the one step in which
    the standard library forks and executes."""

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest):
        words = [] if isinstance(args, (str, bytes)) else [os.fspath(word) for word in args]
        if words[:1] != [sys.executable] or words[1:2] == ["-c"] or _has_open_database():
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *rest)
            return
        input_, output, errors, session = rest[3], rest[6], rest[8], rest[14]
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        self._child_created = True
        if self.pid:
            self._close_pipe_fds(*rest[3:9])
            return
        _run_and_exit((input_, output, errors), words[1:], cwd or os.getcwd(), env or os.environ, session, preexec_fn)


def _has_open_database():
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}").endswith(".db"):
                return True
    return False


def _become(output, errors, cores, command):
    """The life of a process that `Forked` starts."""
    if cores:
        os.sched_setaffinity(0, cores)
    streams = (-1, os.dup(output.fileno()), os.open(errors, os.O_WRONLY | os.O_APPEND) if errors else -1)
    _run_and_exit(streams, *command)


def _become_worker(log, command):
    """The life of a process that `fork_worker` starts."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    _run_and_exit((-1, output, -1), *command)


def _run_and_exit(streams, words, cwd, environment, session, preexec=None):
    """Runs `words` as Python would, in a process that was forked for it, and ends that. `streams` are the descriptors
    of standard input, output and error; -1: as it is, errors with the output."""
    status = 1
    atexit._clear()  # what a process that forked this one would tidy up is its own
    environment = dict(environment)
    try:
        for number, target in zip(streams, (0, 1, 2), strict=True):
            if number != -1:
                os.dup2(number, target)
        if streams[2] == -1 != streams[1]:
            os.dup2(1, 2)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        resource_tracker._resource_tracker._fd = None  # was among them
        if session:
            os.setsid()
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if preexec:
            preexec()
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
        logging.getLogger().handlers.clear()
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        words = [word for word in words if word != "-u"]
        subprocess.Popen = _Fork
        if words[:3] == ["-m", "ablate", "sweep"]:
            with fork_server():
                start_server()
        if words[0] == "-m":
            sys.argv = words[1:]
            sys.path.insert(0, cwd)
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = words
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
            runpy.run_path(words[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextlib.contextmanager
def fork_server():
    """Within, multiprocessing's fork server is not started anew but forked, with all that is imported here."""

    def fork(path, words, descriptors):
        if "forkserver" not in words[-1]:
            return plain(path, words, descriptors)
        pid = os.fork()
        if pid:
            return pid
        for number in set(range(3, 1024)) - set(descriptors):
            with contextlib.suppress(OSError):
                os.close(number)
        forkserver._forkserver.__init__()  # of the process that was forked, and held by it
        try:
            exec(words[-1], {"__name__": "__main__"})
        finally:
            os._exit(0)

    plain, util.spawnv_passfds = util.spawnv_passfds, fork
    try:
        yield
    finally:
        util.spawnv_passfds = plain
