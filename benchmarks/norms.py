"""Forward and backward of every registered norm layer, timed against LayerNorm, alternating in one run: of the layer
alone, or with --model of a whole model that has no other norms.

Alone, the input is [batch, seq, dim], of --tokens tokens in all, as one norm of a model sees it: a hidden state in the
dtype given, weights in float32, training mode. In bfloat16 statistics are still computed in float32, as in every run.
A model is a GRU on sequences of 64 bytes, or a ConvPool-CNN-C on images of 32 x 32, whose norms Zhang and Sennrich 2019
(arXiv 1910.07467, tables 2, 3 and 10) time; in bfloat16 it runs under autocast. The optimizer is left out.
After each segment of a norm, LayerNorm makes as many calls; a ratio is LayerNorm's time over the norm's, so above 1 is
faster than LayerNorm. The row of LayerNorm itself shows what noise alone does, and `none`, which computes nothing, what
an empty pass takes. On the CPU, and on CUDA where there is a GPU.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import sys
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from timing import Pairs, Run, alternating, between, nothing, positive, seconds
from torch import nn

from ablate.config.errors import AblateError, ConfigError
from ablate.config.plugins import load
from ablate.experiment.tree import Experiment
from ablate.norms import NormLayer, norm_layers

EXAMPLES = """examples:
  python benchmarks/norms.py                                     # every norm, eager and compiled, float32 and bfloat16
  python benchmarks/norms.py --dim 256 --tokens 2048 --pairs 40
  python benchmarks/norms.py --modes eager --dtypes float32 --only rmsnorm prmsnorm
  python benchmarks/norms.py --plugins my_norm.py --only damped  # a norm layer of your own
  python benchmarks/norms.py --model gru --modes eager           # in a GRU, whose loop over tokens is long to compile
  python benchmarks/norms.py --model convpool --dim 96 --dtypes float32
"""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODES = ("eager", "compiled")
REFERENCE = "layernorm"
SEGMENT = 0.03  # seconds that a segment of LayerNorm takes at least


@dataclass(frozen=True)
class Size:
    """The size of what is timed."""

    dim: int
    """Features; of a GRU the width of its state, of a ConvPool-CNN-C the channels of its first layers."""
    tokens: int
    """Tokens of a batch, or images."""


SIZES = {"layer": Size(768, 4096), "gru": Size(256, 1024), "convpool": Size(24, 16)}
"""What is timed -> its default size."""
FIELDS = ("dim", "tokens")


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


def compiled(module: nn.Module, mode: str) -> nn.Module:
    """The module, compiled where `mode` says so."""
    return torch.compile(module) if mode == "compiled" else module  # type: ignore[return-value]


def pass_of_layer(kind: str, size: Size, mode: str, dtype: str, device: str) -> Run:
    """One forward and backward pass of a norm layer."""
    seq = math.gcd(size.tokens, 256)
    module = compiled(norm(kind).build(size.dim).to(device), mode)
    return forward_backward(module, (size.tokens // seq, seq, size.dim), DTYPES[dtype], device)


def experiment(model: str, kind: str, size: Size) -> Experiment:
    """A model with this norm layer at its defaults. Raises ConfigError where the model refuses it."""
    width = {"gru": "hidden", "convpool": "width"}[model]
    return Experiment.from_mapping({"model": {"kind": model, width: size.dim}, "norm.layer": kind})


def pass_of_model(model: str, kind: str, size: Size, mode: str, dtype: str, device: str) -> Run:
    """One forward and backward pass of a model with this norm layer, from inputs to its loss."""
    run, random = experiment(model, kind, size), torch.Generator().manual_seed(0)
    seq = math.gcd(size.tokens, 64)
    shape: tuple[int, ...] = (seq,) if run.model.per_token else (3, 32, 32)
    classes, items = (256, size.tokens // seq) if run.model.per_token else (10, size.tokens)
    if run.model.per_token:
        inputs, targets = (torch.randint(classes, (items, seq), generator=random).to(device) for _ in range(2))
    else:
        inputs = torch.randn(items, *shape, generator=random).to(device)
        targets = torch.randint(classes, (items,), generator=random).to(device)
    module = run.build_model(classes, shape).to(device)
    wanted, forward = list(module.parameters()), compiled(module, mode)

    def step() -> object:
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = forward(inputs)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())
        return torch.autograd.grad(loss, wanted)

    return step


def unfit(kind: str, given: argparse.Namespace) -> str:
    """Why a norm layer cannot be timed; empty where it can."""
    if given.model == "layer":
        problems = norm(kind).validate(given.size.dim, causal=False)
        return "; ".join(f"{problem.path} {problem.message}" for problem in problems)
    try:
        experiment(given.model, kind, given.size)
    except ConfigError as error:
        return "; ".join(f"{problem.path} {problem.message}" for problem in error.problems)
    return ""


def measure(kind: str, given: argparse.Namespace, mode: str, dtype: str, device: str) -> tuple[Pairs, int]:
    """The segments of a norm layer and of LayerNorm, and how many calls a segment has."""
    make = pass_of_layer if given.model == "layer" else functools.partial(pass_of_model, given.model)
    ours, reference = (make(name, given.size, mode, dtype, device) for name in (kind, REFERENCE))
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
        if why := unfit(kind, given):
            found.caption = "\n".join([*([str(found.caption)] if found.caption else []), f"{kind} is skipped: {why}"])
            continue
        pairs, segment = measure(kind, given, mode, dtype, device)
        spread, each = pairs.spread(), 1e3 * statistics.median(pairs.ours) / segment
        ranges = (between(spread.quartiles), between(spread.interval))
        found.add_row(kind, f"{each:.3f}", f"{spread.median:.2f}", *ranges)
    return found


def describe(given: argparse.Namespace) -> str:
    """What is timed, on how much."""
    dim, items = given.size.dim, given.size.tokens
    if given.model == "layer":
        return f"each norm layer on {items} tokens of {dim} features"
    return (
        f"a GRU, {dim} wide, on {items} tokens"
        if given.model == "gru"
        else (f"a ConvPool-CNN-C of {dim} channels on {items} images")
    )


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
    top.add_argument(
        "--model", choices=list(SIZES), default="layer", help="what is timed: the layer alone, or a model with it"
    )
    sizes = {field: ", ".join(f"{name} {getattr(size, field)}" for name, size in SIZES.items()) for field in FIELDS}
    top.add_argument("--dim", type=positive, help=f"features, or the width of a model (default: {sizes['dim']})")
    top.add_argument("--tokens", type=positive, help=f"tokens of a batch, or images (default: {sizes['tokens']})")
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
    default = SIZES[given.model]
    given.size = Size(given.dim or default.dim, given.tokens or default.tokens)
    torch.set_num_threads(given.threads)
    console = Console()
    console.print(
        f"Forward and backward of {describe(given)}; {given.pairs} pairs; "
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
