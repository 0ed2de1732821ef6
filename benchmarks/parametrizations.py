"""The time of an update under each parametrisation over that of `standard`, alternating in one run, in plain loops.

    python benchmarks/parametrizations.py
    python benchmarks/parametrizations.py --hidden 256 --pairs 60
    python benchmarks/parametrizations.py --processor     # the time of the processor, on a machine that does other work

Both sides train the same LLaMA on the topics that come with Python. Its base has a quarter of its width, and for
`complete_p` also half of its depth, so that factors differ from 1. A ratio above 1 is slower than `standard`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from timing import alternating, between, positive

from ablate import Experiment, tracking
from ablate.optim.optimizers import build_optimizer

KINDS = ("mup", "complete_p")


def build(kind: str, hidden: int) -> Experiment:
    """Return the experiment of one side."""
    base = {"hidden": hidden // 4, "layers": 6 if kind == "mup" else 3}
    return Experiment.from_mapping(
        {
            "data": {"kind": "topics", "seq_len": 128},
            "model": {"kind": "llama", "hidden": hidden, "layers": 6, "heads": hidden // 32, "mlp": 3 * hidden},
            "norm": "mix",
            "trainer": {"batch_size": 8, "max_steps": 100_000},
            "parametrization": {"kind": kind, "base": base} if kind != "standard" else {"kind": "standard"},
        }
    )


def train(experiment: Experiment) -> Iterator[None]:
    """Train the model, and yield after each update, without end."""
    corpus = experiment.data.load(tracking.cache_folder())
    model = experiment.build_model(corpus.classes, corpus.shape)
    optimizer = build_optimizer(experiment.optimizer, model)
    for inputs, targets in corpus.train.batches(experiment.trainer.batch_size, experiment.seed):
        experiment.task.compute_loss(model, inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def main() -> None:
    """Print a line for each parametrisation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=positive, nargs="+", default=[64, 256])
    parser.add_argument("--pairs", type=positive, default=40)
    parser.add_argument("--segment", type=positive, default=5, help="updates of a side in its turn")
    parser.add_argument("--processor", action="store_true", help="time of the processor, not of the clock")
    options = parser.parse_args()
    clock = time.process_time if options.processor else time.perf_counter
    torch.set_num_threads(1)
    for hidden in options.hidden:
        for kind in KINDS:
            ours, theirs = (train(build(name, hidden)).__next__ for name in (kind, "standard"))
            # theirs first, so that a ratio is ours over theirs
            pairs = alternating(theirs, ours, options.pairs, options.segment, clock=clock)
            spread = pairs.spread()
            print(
                f"{kind:10} hidden {hidden:4}: {spread.median:.3f} of the time of standard "
                f"(95 %: {between(spread.interval, 3)})",
                flush=True,
            )


if __name__ == "__main__":
    main()
