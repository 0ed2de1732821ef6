"""What a sweep's processes hold in memory after 10, 50 and 100 trials: neither may grow with the trials.

A sweep of one arm with a tiny model runs through the real engine, with real worker processes, in a temporary store. The
sweep process and the server that workers are forked from are measured each time so many trials have ended (resident
memory, from /proc); of each worker the peak that it had reached when its result came. Linux only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from ablate.sweeps import run
from ablate.sweeps.arms import ArmTrials
from ablate.sweeps.spec.sweep import Sweep

EXAMPLES = """examples:
  python benchmarks/memory.py                # 100 trials, minutes
  python benchmarks/memory.py --trials 20    # to see that it works
"""
MODEL = {
    "model": {"hidden": 16, "layers": 1, "heads": 2, "mlp": 32},
    "data": {"kind": "topics", "seq_len": 32, "val_fraction": 0.01},
    "trainer": {"max_steps": 2, "batch_size": 4, "val_check_interval": 1, "log_every_n_steps": 1},
}


def memory(pid: int | str, field: str = "VmRSS") -> float:
    """Megabytes of a process; `field` may be VmHWM, its peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0  # it has just ended


def sweep_of(trials: int) -> Sweep:
    """The sweep that is measured."""
    search = {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}}
    return Sweep.from_tree({"name": "memory", "experiment": MODEL, "search": search, "budget": {"trials": trials}})


def measure(trials: int, workers: int, console: Console) -> tuple[dict[int, tuple[float, float]], list[float]]:
    """Finished trials -> (sweep process, fork server); and the peak of each worker."""
    from multiprocessing import forkserver

    at: dict[int, tuple[float, float]] = {}
    peaks: list[float] = []
    ended, heard = ArmTrials.record_result, run._Runner._handle

    def count(self: ArmTrials, *given: Any) -> None:
        ended(self, *given)
        done = len(peaks)
        if done in (1, 10, 50, 100, trials) or done % 100 == 0:
            at[done] = (memory("self"), memory(forkserver._forkserver._forkserver_pid))  # type: ignore[attr-defined]
            console.print(f"{done} trials: {at[done][0]:.0f} MB, {at[done][1]:.0f} MB", highlight=False)

    def listen(self: Any, job: Any, kind: str, *content: Any) -> None:
        if kind == "done":
            peaks.append(memory(job.worker.process.pid, "VmHWM"))
        heard(self, job, kind, *content)

    ArmTrials.record_result, run._Runner._handle = count, listen  # type: ignore[method-assign, assignment]
    try:
        run.sweep(sweep_of(trials), workers=workers, console=Console(quiet=True))
    finally:
        ArmTrials.record_result, run._Runner._handle = ended, heard  # type: ignore[method-assign]
    return at, peaks


def main() -> int:
    """The command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES, formatter_class=formatter)
    parser.add_argument("--trials", type=int, default=100, help="trials of the sweep (default: 100)")
    parser.add_argument("--workers", type=int, default=1, help="trials at a time (default: 1)")
    given = parser.parse_args()
    if given.trials < 1 or given.workers < 1:
        parser.error("--trials and --workers are at least 1")
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABLATE_STORE"] = folder
        for name in ("MLFLOW_TRACKING_URI", "ABLATE_STORAGE"):
            os.environ.pop(name, None)
        at, peaks = measure(given.trials, given.workers, console)
    table = Table("trials", "sweep, MB", "fork server, MB", "highest peak of a worker so far, MB", box=box.SIMPLE)
    for done, (sweep, server) in sorted(at.items()):
        table.add_row(str(done), f"{sweep:.1f}", f"{server:.1f}", f"{max(peaks[:done], default=0):.1f}")
    console.print(table)
    known = [peak for peak in peaks if peak]
    if known:
        middle = statistics.median(known)
        console.print(f"Peaks of the workers: {min(known):.1f} to {max(known):.1f} MB, median {middle:.1f} MB.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
