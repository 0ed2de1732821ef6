"""Slurm jobs that are requeued shortly before their time limit (`#SBATCH --signal=USR1@120`) and then resume. On
SIGTERM alone, which preemption, `scancel` and the time limit send, a run writes its checkpoint; Slurm decides what
happens to the job then.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from ablate.config.errors import StoreError


def job_id() -> str | None:
    """Return the id of this process's job, or of its element of a job array; None outside Slurm."""
    return os.environ.get("SLURM_JOB_ID")


def requeue(signals: Iterable[int]) -> str:
    """Requeue this job if SIGUSR1 is among the `signals` that stopped it; return a sentence about the result."""
    number = job_id()
    if number is None or signal.SIGUSR1 not in signals:
        return ""
    sys.stdout.flush()
    try:
        done = subprocess.run(["scontrol", "requeue", number], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"Slurm's job {number} cannot be requeued: scontrol: {error.strerror}"
    if done.returncode:
        return f"Slurm's job {number} cannot be requeued: {done.stderr.strip()}"
    return f"Slurm's job {number} has been requeued."


def remember(store: Path, run_id: str) -> None:
    """Store which run this job trains, for the time after requeueing."""
    if number := job_id():
        folder = store / "slurm"
        try:
            folder.mkdir(exist_ok=True)
            (folder / number).write_text(run_id, encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{folder} cannot be written: {error.strerror}") from None


def recall(store: Path) -> str | None:
    """Return the run that this job trained before it was requeued; None if it was not requeued."""
    if job_id() is None or int(os.environ.get("SLURM_RESTART_COUNT", 0)) == 0:
        return None
    note = store / "slurm" / str(job_id())
    return note.read_text(encoding="utf-8") if note.exists() else None
