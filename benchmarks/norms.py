"""Forward and backward of every registered norm layer, timed against LayerNorm, alternating in one run.

The input is [batch, seq, dim], of --tokens tokens in all, as one norm of a model sees it: a hidden state in the dtype
given, weights in float32, training mode. In bfloat16 statistics are still computed in float32, as in every run.
After each segment of a norm, LayerNorm makes as many calls; a ratio is LayerNorm's time over the norm's, so above 1 is
faster than LayerNorm. The row of LayerNorm itself shows what noise alone does, and `none`, which computes nothing, what
an empty pass takes. On the CPU, and on CUDA where there is a GPU.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from timing import Pairs, Run, alternating, between, nothing, positive, seconds
from torch import nn

from ablate.config.errors import AblateError
from ablate.config.plugins import load
from ablate.norms import NormLayer, norm_layers

EXAMPLES = """examples:
  python benchmarks/norms.py                                     # every norm, eager and compiled, float32 and bfloat16
  python benchmarks/norms.py --dim 256 --tokens 2048 --pairs 40
  python benchmarks/norms.py --modes eager --dtypes float32 --only rmsnorm prmsnorm
  python benchmarks/norms.py --plugins my_norm.py --only damped  # a norm layer of your own
"""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODES = ("eager", "compiled")
REFERENCE = "layernorm"
SEGMENT = 0.03  # seconds that a segment of LayerNorm takes at least


def forward_backward(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Run:
    """A function that makes one forward and backward pass of `module` on a fixed input."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=random).to(device, dtype).requires_grad_()
    gradient = torch.randn(shape, generator=random).to(device, dtype)
    wanted = [x, *module.parameters()]
    return lambda: torch.autograd.grad(module(x), wanted, gradient)


def norm(kind: str) -> NormLayer:
    """The configuration of a norm layer, at its defaults."""
    return norm_layers.parse(kind)


def build(kind: str, dim: int, mode: str, device: str) -> nn.Module:
    """A norm layer in training mode, compiled where `mode` says so."""
    module = norm(kind).build(dim).to(device)
    return torch.compile(module) if mode == "compiled" else module  # type: ignore[return-value]


def unfit(kind: str, dim: int) -> str:
    """Why a norm layer cannot be timed on `dim` features; empty where it can."""
    return "; ".join(f"{problem.path} {problem.message}" for problem in norm(kind).validate(dim, causal=False))


def measure(kind: str, given: argparse.Namespace, mode: str, dtype: str, device: str) -> tuple[Pairs, int]:
    """The segments of a norm layer and of LayerNorm, and how many calls a segment has."""
    seq = math.gcd(given.tokens, 256)
    shape = (given.tokens // seq, seq, given.dim)
    ours, reference = (
        forward_backward(build(name, given.dim, mode, device), shape, DTYPES[dtype], device)
        for name in (kind, REFERENCE)
    )
    wait = torch.cuda.synchronize if device == "cuda" else nothing
    for run in (ours, reference):
        seconds(run, 3, wait)  # compiles
    segment = max(1, math.ceil(SEGMENT / (seconds(reference, 3, wait) / 3)))
    return alternating(ours, reference, given.pairs, segment, synchronize=wait), segment


def table(given: argparse.Namespace, mode: str, dtype: str, device: str) -> Table:
    """The norm layers in one mode, dtype and device."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {plural(given.threads)}"
    found = Table(
        title=f"{mode}, {dtype}, {name}", title_justify="left", caption_justify="left", box=box.SIMPLE, pad_edge=False
    )
    found.add_column("norm layer")
    for column in ("ms", "LayerNorm's time / its", "quartiles", "95 % of the median"):
        found.add_column(column, justify="right")
    torch._dynamo.reset()
    for kind in given.only or list(norm_layers):
        if why := unfit(kind, given.dim):
            found.caption = "\n".join([*([str(found.caption)] if found.caption else []), f"{kind} is skipped: {why}"])
            continue
        pairs, segment = measure(kind, given, mode, dtype, device)
        spread, each = pairs.spread(), 1e3 * statistics.median(pairs.ours) / segment
        ranges = (between(spread.quartiles), between(spread.interval))
        found.add_row(kind, f"{each:.3f}", f"{spread.median:.2f}", *ranges)
    return found


def plural(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--only", nargs="+", metavar="NORM", help="of " + ", ".join(norm_layers))
    top.add_argument(
        "--plugins", nargs="+", default=[], metavar="FILE", help="Python files with norm layers of your own"
    )
    top.add_argument("--dim", type=positive, default=768, help="features (default: %(default)s)")
    top.add_argument("--tokens", type=positive, default=4096, help="in a batch (default: %(default)s)")
    top.add_argument("--pairs", type=positive, default=20, help="timed segments of each side (default: %(default)s)")
    top.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    top.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    top.add_argument("--threads", type=positive, default=os.cpu_count() or 1, help="of the CPU (default: %(default)s)")
    return top


def main() -> int:
    top = parser()
    given = top.parse_args()
    try:
        load(given.plugins)
    except AblateError as error:
        top.error(str(error))
    if unknown := [kind for kind in given.only or () if kind not in norm_layers]:
        top.error(f"unknown norm layer {', '.join(unknown)}. Accepted: {', '.join(norm_layers)}")
    torch.set_num_threads(given.threads)
    console = Console()
    console.print(
        f"Forward and backward on {given.tokens} tokens of {given.dim} features; {given.pairs} pairs; "
        "a ratio is LayerNorm's time / the norm's, so above 1 is faster than LayerNorm",
        highlight=False,
    )
    for device in ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]:
        for mode in given.modes:
            for dtype in given.dtypes:
                console.print(table(given, mode, dtype, device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
