"""FLOPs and peak memory of training against what `ablate plan` says, as a table.

    python benchmarks/plan.py                                      # on the CPU: every scheme, two small shapes, minutes
    python benchmarks/plan.py --schemes hc mhc --sizes 256x8x256x2
    python benchmarks/plan.py --device cuda                        # on a GPU: 71M, 250M and 1B, three batches each
    python benchmarks/plan.py --device cuda --models 71m --batches 16 --schemes pre mix deepnorm

Each case trains updates of random tokens, eager and with activation checkpointing, in the order of Lightning: the old
gradients go between forward and backward pass. On the CPU in float32, of a LLaMA of WIDTHxLAYERSxTOKENSxBATCH; the peak
is that of what torch's profiler sees allocated, and FLOPs are those of torch's counter: products of matrices, to which
those within attention are added as the plan counts them, since torch counts no fused attention of a CPU. On a GPU in
bf16-mixed; the peak is `torch.cuda.max_memory_allocated`, and a case that the plan says does not fit is left out. The
exit status is 1 where one is off by more than the tolerance, 5 % on the CPU and 10 % on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from peers import SCHEMES
from timing import positive
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ablate import Experiment
from ablate.estimate.gpus import GIB
from ablate.estimate.memory import Meter, Setup
from ablate.estimate.tracing import checkpoint_layers
from ablate.models import Model

UPDATES = 3
SIZES = ("256x8x256x2", "64x6x128x8")
VOCABULARY = {"cpu": 512, "cuda": 32000}
PRECISION = {"cpu": "32-true", "cuda": "bf16-mixed"}
TOLERANCE = {"cpu": 0.05, "cuda": 0.10}


@dataclass(frozen=True)
class Case:
    """One training."""

    size: str
    """WIDTHxLAYERSxTOKENSxBATCH, or a LLaMA of Ablate's."""
    scheme: str
    seq: int
    batch: int
    checkpointing: bool
    device: str

    @property
    def experiment(self) -> Experiment:
        """Its configuration."""
        settings = {"model": f"llama-{self.size}", "model.vocab_size": VOCABULARY[self.device]}
        if "x" in self.size:
            hidden, layers = map(int, self.size.split("x")[:2])
            mlp, heads = round(8 * hidden / 3 / 8) * 8, max(1, hidden // 64)
            settings = {"model": {"kind": "llama", "hidden": hidden, "mlp": mlp, "layers": layers, "heads": heads}}
        own = {"data.seq_len": self.seq, "trainer.batch_size": self.batch}
        return Experiment.from_mapping({**settings, **SCHEMES[self.scheme]}, own)

    def plan(self) -> Meter:
        """What the plan says."""
        return Meter(self.experiment, VOCABULARY[self.device], (self.seq,), gpu=self.device == "cuda")

    @property
    def setup(self) -> Setup:
        return Setup("one", 1, PRECISION[self.device], self.batch, 1, self.checkpointing, False)

    def train(self, settled: Callable[[], Any] = lambda: None, updates: int = UPDATES) -> None:
        """So many updates; `settled` is called after the first."""
        experiment, classes = self.experiment, VOCABULARY[self.device]
        with torch.device(self.device):
            model: Model = experiment.model.build(experiment.norm, experiment.init, classes, (self.seq,))
            tokens, targets = torch.randint(classes, (2, self.batch, self.seq)).unbind()
        optimizer = experiment.optimizer.build(model)
        again = checkpoint_layers(list(model.blocks())) if self.checkpointing else contextlib.nullcontext()
        with again:
            for update in range(updates):
                with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                    value = model(tokens, targets)
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
                if update == 0:
                    settled()


def peak_on_gpu(case: Case) -> float:
    """Bytes at the peak after the first update."""

    def settled() -> None:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    case.train(settled)
    torch.cuda.synchronize()
    found = torch.cuda.max_memory_allocated()
    gc.collect()
    torch.cuda.empty_cache()
    return float(found)


def peak_on_cpu(case: Case) -> float:
    """Bytes at the peak of all that is allocated."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        case.train(updates=2)
    results: Any = seen.profiler
    events = [(e.start_ns(), e.nbytes()) for e in results.kineto_results.events() if e.name() == "[memory]"]
    return float(np.cumsum([size for _, size in sorted(events)]).max())


PEAKS = {"cpu": peak_on_cpu, "cuda": peak_on_gpu}


def flops_of_token(case: Case) -> float:
    """FLOPs of an update for each token, as torch counts products; those within attention as the plan does."""
    attention = (4 if case.checkpointing else 3) * case.experiment.model.attention_flops((case.seq,))
    flash = [torch.ops.aten._scaled_dot_product_flash_attention, torch.ops.aten._scaled_dot_product_efficient_attention]
    flash += [torch.ops.aten._scaled_dot_product_flash_attention_backward]
    flash += [torch.ops.aten._scaled_dot_product_efficient_attention_backward]
    none: Any = {op: lambda *args, **more: 0 for op in flash}
    with FlopCounterMode(display=False, custom_mapping=none) as counter:
        case.train(updates=1)
    return float(counter.get_total_flops() / (case.batch * case.seq) + attention)


def compare(case: Case, room: float) -> tuple[str, list[float]]:
    """A row of the table, and measured over planned."""
    meter = case.plan()
    memory = meter.memory(case.setup)
    mode = "checkpointed" if case.checkpointing else "eager"
    start = f"| {case.size} | {case.scheme} | {case.batch} x {case.seq} | {mode} | {memory.peak / GIB:.3f} |"
    if not memory.fits(room):
        return f"{start} does not fit | | |", []
    planned = meter.counts.training_flops * (meter.slowdown if case.checkpointing else 1)
    found = PEAKS[case.device](case)
    ratios = [found / memory.peak, flops_of_token(case) / planned]
    return f"{start} {found / GIB:.3f} | {' | '.join(f'{ratio:.3f}' for ratio in ratios)} |", ratios


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--device", choices=list(PEAKS), default="cpu")
    top.add_argument("--schemes", nargs="+", choices=list(SCHEMES), metavar="SCHEME", help=", ".join(SCHEMES))
    top.add_argument("--sizes", nargs="+", default=list(SIZES), help="on the CPU: WIDTHxLAYERSxTOKENSxBATCH")
    top.add_argument("--models", nargs="+", default=["71m", "250m", "1b"], help="on a GPU")
    top.add_argument("--batches", nargs="+", type=positive, default=[16, 32, 64], help="on a GPU: sequences at once")
    top.add_argument("--seq", type=positive, default=256, help="on a GPU: tokens of a sequence")
    given = top.parse_args()
    room, name = float("inf"), "CPU"
    shapes = [(size, int(size.split("x")[2]), int(size.split("x")[3])) for size in given.sizes]
    schemes = given.schemes or list(SCHEMES)
    if given.device == "cuda":
        if not torch.cuda.is_available():
            print("benchmarks/plan.py --device cuda needs a GPU with CUDA; torch finds none", file=sys.stderr)
            return 2
        room, name = torch.cuda.get_device_properties(0).total_memory, torch.cuda.get_device_name(0)
        shapes = [(model, given.seq, batch) for model in given.models for batch in given.batches]
        schemes = given.schemes or ["pre"]
    torch.set_num_threads(1)
    print(f"{name}, {room / GIB:.1f} GiB, torch {torch.__version__}\n")
    columns = ("size", "scheme", "batch", "", "planned GiB", "measured GiB", "memory", "FLOPs: measured / planned")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    worst = 0.0
    for size, seq, batch in shapes:
        for scheme in schemes:
            for checkpointing in (False, True):
                row, ratios = compare(Case(size, scheme, seq, batch, checkpointing, given.device), room)
                worst = max([worst, *(abs(ratio - 1) for ratio in ratios)])
                print(row, flush=True)
    print(f"\nlargest deviation: {worst:.1%}")
    return 0 if worst <= TOLERANCE[given.device] else 1


if __name__ == "__main__":
    sys.exit(main())
