"""Peak memory of training on a GPU against what `ablate plan` says, as a table for docs/explanation/memory.md.

    python benchmarks/memory_gpu.py                                # 71M, 250M and 1B, three batches each, minutes
    python benchmarks/memory_gpu.py --models 71m --batches 16 --norms pre mix deepnorm

Each case trains three updates of random tokens in bf16-mixed, eager and with activation checkpointing, in the order of
Lightning: the old gradients go between forward and backward pass. Measured is `torch.cuda.max_memory_allocated` of the
second and third. A case that the plan says does not fit is left out. The exit status is 1 where one is more than 10 %
off.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from dataclasses import dataclass

import torch
from timing import positive

from ablate import Experiment
from ablate.estimate.gpus import GIB
from ablate.estimate.memory import Memory, Meter, Setup
from ablate.estimate.tracing import checkpoint_layers
from ablate.models import Model

VOCABULARY, UPDATES = 32000, 3
TOLERANCE = 0.10


@dataclass(frozen=True)
class Case:
    """One training."""

    model: str
    norm: str
    seq: int
    batch: int
    checkpointing: bool

    @property
    def experiment(self) -> Experiment:
        """Its configuration."""
        settings = {"model": f"llama-{self.model}", "model.vocab_size": VOCABULARY, "norm": self.norm}
        return Experiment.from_mapping(settings, {"data.seq_len": self.seq, "trainer.batch_size": self.batch})


def predicted(case: Case) -> Memory:
    """What the plan says."""
    setup = Setup("one", 1, "bf16-mixed", case.batch, 1, case.checkpointing, False)
    return Meter(case.experiment, VOCABULARY, (case.seq,)).memory(setup)


def measured(case: Case) -> int:
    """Bytes at the peak of the second and third update."""
    experiment = case.experiment
    with torch.device("cuda"):
        model: Model = experiment.model.build(experiment.norm, experiment.init, VOCABULARY, (case.seq,))
        tokens, targets = torch.randint(VOCABULARY, (2, case.batch, case.seq)).unbind()
    optimizer = experiment.optimizer.build(model)
    again = checkpoint_layers(list(model.blocks())) if case.checkpointing else contextlib.nullcontext()
    with again:
        for update in range(UPDATES):
            with torch.autocast("cuda", torch.bfloat16):
                value = model(tokens, targets)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            if update == 0:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated())


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--models", nargs="+", default=["71m", "250m", "1b"])
    top.add_argument("--norms", nargs="+", default=["pre"])
    top.add_argument("--batches", nargs="+", type=positive, default=[16, 32, 64], help="sequences at once")
    top.add_argument("--seq", type=positive, default=256)
    given = top.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/memory_gpu.py needs a GPU with CUDA; torch finds none", file=sys.stderr)
        return 2
    room = torch.cuda.get_device_properties(0).total_memory
    print(f"{torch.cuda.get_device_name(0)}, {room / GIB:.1f} GiB, torch {torch.__version__}, sequence {given.seq}\n")
    columns = ("model", "norm", "batch", "", "predicted GiB", "measured GiB", "predicted / measured")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    worst = 0.0
    for model in given.models:
        for norm in given.norms:
            for batch in given.batches:
                for checkpointing in (False, True):
                    case = Case(model, norm, given.seq, batch, checkpointing)
                    plan = predicted(case)
                    mode = "checkpointed" if checkpointing else "eager"
                    start = f"| {model} | {norm} | {batch} | {mode} | {plan.peak / GIB:.2f} |"
                    if not plan.fits(room):
                        print(f"{start} does not fit | |", flush=True)
                        continue
                    found = measured(case)
                    gc.collect()
                    torch.cuda.empty_cache()
                    worst = max(worst, abs(plan.peak / found - 1))
                    print(f"{start} {found / GIB:.2f} | {plan.peak / found:.3f} |", flush=True)
    print(f"\nlargest deviation: {worst:.1%}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
