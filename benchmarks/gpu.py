"""Runs on a GPU beside their plan: tokens a second, utilisation (MFU) and peak memory, as `ablate train` has them and
as `ablate plan` says, in a table.

    make gpu                                        # after the tests of tests/gpu
    python benchmarks/gpu.py --models llama-71m llama-250m llama-1b --batch 32 --seq 1024

Each case is a run through `ablate.train`, with its checks, callbacks and MLflow, on random tokens, in a store of its
own that is removed. Without a GPU the script says so, and does nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

import torch
from detected import detect_gpu
from sized import VOCABULARY
from timing import positive

from ablate import Experiment, train
from ablate.estimate.gpus import GIB, GPU
from ablate.estimate.plan import Assumed, Plan, plan
from ablate.tracking import client
from ablate.training.procedures import Result

UPDATES, LOGGED = 60, 20
COLUMNS = ("model", "programs", "tokens/s", "planned", "MFU", "planned", "GiB", "planned")


def describe(model: str, seq: int, batch: int, compiled: bool) -> Experiment:
    """Return the experiment of one case."""
    data = {"kind": "random_tokens", "vocabulary": VOCABULARY, "seq_len": seq, "rows": 4 * batch}
    trainer = {"max_steps": UPDATES, "batch_size": batch, "val_check_interval": UPDATES, "log_every_n_steps": LOGGED}
    tree = {"model": {"kind": model, "vocab_size": VOCABULARY}, "data": data, "trainer": trainer}
    return Experiment.from_mapping(tree, {"trainer.compile": compiled, "trainer.precision": "bf16-mixed"})


def measure_speed(result: Result) -> float:
    """Return the tokens per second of the last updates of a run, when all has been compiled."""
    return float(client().get_metric_history(result.run_id, "train/tokens_per_second")[-1].value)


def compare(result: Result, planned: Plan, gpu: GPU) -> str:
    """Return the row of a table: what a run has had, beside its plan."""
    speed = measure_speed(result)
    mfu = speed * planned.counts.training_flops / gpu.flops(planned.setup.precision)
    peak = result.facts.get("ablate.peak_memory_bytes", 0) / GIB
    cells = [f"{speed:,.0f}", f"{planned.items_per_second:,.0f}", f"{mfu:.1%}", f"{planned.work.utilisation:.0%}"]
    return " | ".join([*cells, f"{peak:.2f}", f"{planned.memory.peak / GIB:.2f}"])


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--models", nargs="+", default=["llama-71m", "llama-250m"])
    top.add_argument("--batch", type=positive, default=32, help="sequences of an update")
    top.add_argument("--seq", type=positive, default=512)
    given = top.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here: nothing to measure beside the plan.")
        return 0
    name = torch.cuda.get_device_name(0)
    if (gpu := detect_gpu()) is None:
        print(f"The peak of {name} is not known (ablate/estimate/gpus.py): no utilisation can be told.")
        return 0
    print(f"{name}, torch {torch.__version__}, {given.batch} sequences of {given.seq} tokens, bf16-mixed\n")
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    with tempfile.TemporaryDirectory() as store:
        os.environ["ABLATE_STORE"] = store
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        for model in given.models:
            for compiled in (False, True):
                experiment = describe(model, given.seq, given.batch, compiled)
                row = compare(train(experiment, progress=False), plan(experiment, Assumed(gpu)), gpu)
                print(f"| {model} | {'compiled' if compiled else 'eager'} | {row} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
