"""Trials per hour of a small model where K workers share each GPU, as ratios to one worker; sides take turns.

    python benchmarks/workers_gpu.py                                   # 9M, K = 1, 2, 4, 8
    python benchmarks/workers_gpu.py --workers 1 2 --trials 4 --rounds 1 --steps 20 --model llama-9m
    python benchmarks/workers_gpu.py --cpu --workers 1 2 --trials 2 --rounds 1 --steps 3 --batch 2

Every side is a sweep of its own, through the real engine, with worker processes, MLflow and a store of its own; each
round gives it the next trials. The text is what comes with Python, as bytes; the vocabulary is 32,000 as in the papers.
A round begins with new workers, whose start counts. `--cpu`: K workers on this machine's cores, to see that it works.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from timing import Spread, between, positive

from ablate import Sweep, sweep, tracking
from ablate.estimate.gpus import GIB


def spec(given: argparse.Namespace, trials: int) -> Sweep:
    """The sweep of one side, of so many trials."""
    return Sweep.from_tree(
        {
            "name": "workers",
            "experiment": {
                "model": {**_preset(given.model), "vocab_size": 32000},
                "data": {"kind": "topics", "seq_len": 256, "val_fraction": 0.01},
                "trainer": {"max_steps": given.steps, "batch_size": given.batch, "compile": given.compile},
            },
            "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            "sampler": "random",
            "pruner": "none",
            "budget": {"trials": trials},
        }
    )


def _preset(name: str) -> dict[str, object]:
    from ablate.models import models

    return dict(models.presets[name])


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--workers", nargs="+", type=positive, default=[1, 2, 4, 8], metavar="K")
    top.add_argument("--trials", type=positive, default=16, help="of each side in a round (default: 16)")
    top.add_argument("--rounds", type=positive, default=3, help="(default: 3)")
    top.add_argument("--steps", type=positive, default=300, help="updates of a trial (default: 300)")
    top.add_argument("--batch", type=positive, default=64, help="sequences of 256 in an update (default: 64)")
    top.add_argument("--model", default="llama-9m")
    top.add_argument("--compile", action="store_true", help="torch.compile, shared by all trials")
    top.add_argument("--cpu", action="store_true")
    given = top.parse_args()
    import torch

    from ablate.scheduler.devices import count_workers, find_largest

    if not given.cpu and not torch.cuda.is_available():
        print("benchmarks/workers_gpu.py needs a GPU, or --cpu; torch finds none", file=sys.stderr)
        return 2
    _, memory = find_largest(spec(given, given.trials))
    print(f"{torch.cuda.get_device_name() if not given.cpu else 'CPU'}; {given.model}, {given.batch} x 256 tokens, "
          f"{given.steps} updates; by the plan a trial needs {memory.needs / GIB:.2f} GiB")  # fmt: skip
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    seconds: dict[int, list[float]] = {each: [] for each in given.workers}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, given.rounds + 1):
            for each, times in seconds.items():
                os.environ["ABLATE_STORE"] = str(Path(folder) / str(each))
                tracking.client.cache_clear()
                todo = spec(given, given.trials * number)
                workers = each if given.cpu else count_workers(todo, each)
                begin = time.perf_counter()
                record = sweep(todo, workers=workers, progress=False)
                times.append(time.perf_counter() - begin)
                ended = record.runs.count_statuses()
                if ended["failed"]:
                    print(f"{ended['failed']} trials failed with {each} workers", file=sys.stderr)
                    return 1
    print("\n| workers on a GPU | trials an hour | ratio to the first: median (quartiles) |\n|---|---|---|")
    first = seconds[given.workers[0]]
    for each, times in seconds.items():
        spread = Spread.of([alone / shared for alone, shared in zip(first, times, strict=True)])
        rate = 3600 * given.trials / statistics.median(times)
        print(f"| {each} | {rate:,.0f} | {spread.median:.2f} ({between(spread.quartiles)}) |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
