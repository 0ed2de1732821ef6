"""Connections at a database with many workers, directly and through `ablate proxy`.

    python benchmarks/connections.py --storage postgresql://me@localhost/scratch --workers 32

Each worker is a process that takes the trials of one sweep and ends them at once, with a lease that shows it is alive.
While they work, the connections are counted in `pg_stat_activity`, without that of the count itself.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import subprocess
import sys
import time
import uuid
import warnings

COUNT = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)


def work(url: str, name: str, trials: int, barrier: object) -> None:
    """Take trials until none is left."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    from simulation.losses import Valley
    from simulation.sweeps import simulate

    from ablate.sweeps.spec.sweep import Sweep
    from ablate.sweeps.storage import open_storage

    spec = Sweep.from_tree(
        {
            "name": name,
            "arms": {"a": {"norm": "pre"}, "b": {"norm": "post"}},
            "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}},
            "sampler": "random",
            "budget": {"trials": trials},
            "confirm": {"seeds": 0},
        }
    )
    storage = open_storage(url)
    barrier.wait()  # type: ignore[attr-defined]
    simulate(spec, Valley({"a": 2.0, "b": 2.1}), storage)


def measure(url: str, database: str, workers: int, trials: int) -> tuple[list[int], float]:
    """Return the numbers of connections at `database` while workers on `url` run a sweep, and the seconds."""
    from sqlalchemy import create_engine, pool, text

    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(workers + 1)
    arguments = (url, f"connections-{uuid.uuid4().hex[:8]}", trials, barrier)
    processes = [context.Process(target=work, args=arguments) for _ in range(workers)]
    for process in processes:
        process.start()
    engine = create_engine(database, poolclass=pool.NullPool)
    counts = []
    barrier.wait()
    start = time.perf_counter()
    with engine.connect() as connection:
        while any(process.is_alive() for process in processes):
            counts.append(int(connection.execute(text(COUNT)).scalar() or 0))
            connection.commit()
            time.sleep(0.05)
    seconds = time.perf_counter() - start
    failed = sum(process.exitcode != 0 for process in processes)
    if failed:
        raise SystemExit(f"{failed} of {workers} workers failed: is max_connections of the server large enough?")
    return counts, seconds


def main() -> None:
    """Measure both, and print what was counted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", required=True, help="an empty database on PostgreSQL")
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--trials", type=int, default=100, help="of each of two arms")
    parser.add_argument("--port", type=int, default=13999, help="of the proxy")
    given = parser.parse_args()
    from ablate.tracking.databases import add_driver

    database = add_driver(given.storage)
    proxied = f"grpc://127.0.0.1:{given.port}"
    words = [sys.executable, "-m", "ablate", "proxy", "--storage", given.storage, "--port", str(given.port)]
    for name, url in (("directly", database), ("through the proxy", proxied)):
        proxy = subprocess.Popen(words, stdout=subprocess.PIPE, text=True) if url == proxied else None
        try:
            if proxy and proxy.stdout:
                proxy.stdout.readline()
            counts, seconds = measure(url, database, given.workers, given.trials)
        finally:
            if proxy:
                proxy.terminate()
                proxy.wait(20)
        rate = 2 * given.trials / seconds
        print(
            f"{name:18} at most {max(counts):3}, mean {sum(counts) / len(counts):5.1f}; {rate:.1f} trials/s", flush=True
        )


if __name__ == "__main__":
    main()
