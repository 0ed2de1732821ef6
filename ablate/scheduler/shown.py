"""A sweep that is shown while it goes: on a terminal, in a notebook, in a log file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.config.logs import log_where_unheard, open_console, print_wrapped
from ablate.scheduler import run
from ablate.scheduler.progress import describe_sweep
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep

if TYPE_CHECKING:
    from rich.console import Console


def sweep(
    spec: Sweep,
    *,
    workers: int = 1,
    storage: str | None = None,
    fresh: bool = False,
    console: Console | None = None,
    progress: bool = True,
) -> SweepRecord:
    """Run `spec` until every arm has its trials, and return what the storage then holds. Run again, it continues.

    Args:
        spec: the sweep.
        workers: trials at a time; each computes on its share of the cores.
        storage: URL of the Optuna storage; by default the SQLite database under `mlruns/`.
        fresh: start anew, and keep the old trials as an earlier generation.
        console: where progress is shown; by default stdout.
        progress: whether it is shown what runs, each trial that begins or ends, the verdict so far and the time that is
            left: in a live table on a terminal, in lines in a notebook, a file or a pipe.

    Raises SweepError where `spec` differs from the file that its studies were started with, DataError and StoreError
    before any trial runs, KeyboardInterrupt after Ctrl-C, when everything that ran is put up for another try.
    """
    if not isinstance(spec, Sweep):
        raise TypeError(f"give a Sweep, such as ablate.Sweep.load('my-sweep.yaml'), not a {type(spec).__name__}")
    if not progress:
        silent = open_console(shown=False)
        return run.sweep(spec, workers=workers, storage=storage, fresh=fresh, console=silent)
    console = console or open_console()
    print_wrapped(console, describe_sweep(spec, workers))
    with log_where_unheard():
        return run.sweep(spec, workers=workers, storage=storage, fresh=fresh, console=console)
