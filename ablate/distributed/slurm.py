"""Jobs of Slurm that are queued again when their time is nearly over (`#SBATCH --signal=USR1@120`), and go on.

SIGTERM alone, which preemption, `scancel` and the end of the time send, has a run write its checkpoint; what Slurm then
does with the job is Slurm's business.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ablate.config.errors import StoreError

STOPPING = (signal.SIGINT, signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))
"""The signals that a run answers with a checkpoint."""


def job_id() -> str | None:
    """Return the number of the job that this process is in, of an array that of the element; None outside Slurm."""
    return os.environ.get("SLURM_JOB_ID")


def requeue(signals: Iterable[int]) -> str:
    """Queue this job again where SIGUSR1 is among the `signals` that stopped it; return a sentence on what was done."""
    number = job_id()
    if number is None or signal.SIGUSR1 not in signals:
        return ""
    sys.stdout.flush()
    try:
        done = subprocess.run(["scontrol", "requeue", number], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"Slurm's job {number} cannot be queued again: scontrol: {error.strerror}"
    if done.returncode:
        return f"Slurm's job {number} cannot be queued again: {done.stderr.strip()}"
    return f"Slurm's job {number} is queued again."


def remember(store: Path, run_id: str) -> None:
    """Write down the run that this job trains, for when it is queued again."""
    if number := job_id():
        folder = store / "slurm"
        try:
            folder.mkdir(exist_ok=True)
            (folder / number).write_text(run_id, encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{folder} cannot be written: {error.strerror}") from None


def recall(store: Path) -> str | None:
    """Return the run that this job trained before it was queued again; None where it was not."""
    if job_id() is None or int(os.environ.get("SLURM_RESTART_COUNT", 0)) == 0:
        return None
    note = store / "slurm" / str(job_id())
    return note.read_text(encoding="utf-8") if note.exists() else None
