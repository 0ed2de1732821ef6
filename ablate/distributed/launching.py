"""`trainer.devices` without torchrun: run the same command as a group of processes on this machine. For the caller it
remains one command, with the output and the exit status of rank 0, which also receives Ctrl-C.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from ablate.distributed import ranks
from ablate.distributed.signals import handle_signals

logger = logging.getLogger(__name__)

LAUNCHED = "ABLATE_LAUNCHED"  # in the environment of a group: where rank 0 writes what its command has to know
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment of processes that Ablate starts: they do not import modules from the current folder, such as a file
ablate.py. Python 3.10 ignores it."""
_PROCESS, _STATUS = "process", "status"


def launch(devices: int) -> int:
    """Run this command in `devices` processes and return the exit status of rank 0."""
    cores = ranks.count_cores()
    group = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices)]
    with tempfile.TemporaryDirectory(prefix="ablate-") as name:
        folder = Path(name)
        environment = {"OMP_NUM_THREADS": str(max(1, cores // devices)), **os.environ, **SAFE_PATH, LAUNCHED: name}
        forwarded: list[int] = []

        def forward(number: int, frame: object) -> None:
            forwarded.append(number)
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(int((folder / _PROCESS).read_text()), number)
                return
            process.terminate()  # there is no rank 0 yet

        with handle_signals(forward):
            process = subprocess.Popen(
                [sys.executable, *group, "-m", "ablate", *sys.argv[1:]],
                env=environment,
                start_new_session=True,  # the keyboard's Ctrl-C comes to us alone
                preexec_fn=_detach,
            )
            status = process.wait()
        try:
            return int((folder / _STATUS).read_text())
        except FileNotFoundError:
            if forwarded:
                return 130
            logger.error(f"ablate: the group of {devices} processes ended before rank 0 did its work")
            return status or 1


def _detach() -> None:
    """Let torchrun, in whose process this is called, end together with its parent process, and ignore the signal meant
    for rank 0."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if hasattr(signal, "SIGUSR1"):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def report_start() -> None:
    """On rank 0, write the id of this process, to which the command that launched this group, if any, sends signals."""
    if folder := os.environ.get(LAUNCHED):
        _write(Path(folder) / _PROCESS, os.getpid())


def report_end(status: int, rank: int) -> int:
    """Return the exit status of this rank. Rank 0 of a launched group writes it for the command that launched it; the
    rank itself exits with 0 then, so that torchrun prints nothing."""
    folder = os.environ.get(LAUNCHED)
    if folder is None:
        return status
    if rank == 0:
        _write(Path(folder) / _STATUS, status)
    return 0


def _write(file: Path, number: int) -> None:
    part = file.with_suffix(".part")
    with contextlib.suppress(FileNotFoundError):  # the command is gone
        part.write_text(str(number))
        os.replace(part, file)
