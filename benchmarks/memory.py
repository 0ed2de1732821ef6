"""What a sweep's processes hold in memory as trials end: neither may grow with the trials.

A sweep of one arm with a tiny model runs through the real engine, with real worker processes, in a temporary store. The
sweep process (resident memory) and its workers (their peaks) are read from /proc when a trial has ended. Linux only.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from ablate.scheduler import run
from ablate.scheduler.status import Follower
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


def measure(trials: int, workers: int, console: Console) -> list[tuple[int, float, list[float]]]:
    """Finished trials, the sweep process and each worker, at every look at the storage after which there were more."""
    rows: list[tuple[int, float, list[float]]] = []
    look = Follower.look

    def note(self: Follower) -> None:
        look(self)
        if not rows or self.display.done > rows[-1][0]:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            rows.append((self.display.done, memory("self"), [memory(pid, "VmHWM") for pid in children]))
            console.print(f"{rows[-1][0]} trials: {rows[-1][1]:.0f} MB", highlight=False)

    Follower.look = note  # type: ignore[method-assign]
    try:
        run.sweep(sweep_of(trials), workers=workers, console=Console(quiet=True))
    finally:
        Follower.look = look  # type: ignore[method-assign]
    return rows


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
        rows = measure(given.trials, given.workers, console)
    table = Table("trials", "sweep, MB", "peak of a worker, MB", box=box.SIMPLE)
    every = max(1, len(rows) // 12)
    for done, sweep, peaks in [*rows[:-1:every], rows[-1]]:
        table.add_row(str(done), f"{sweep:.1f}", ", ".join(f"{peak:.1f}" for peak in peaks))
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
