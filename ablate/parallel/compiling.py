"""Programs of torch.compile that a process keeps from run to run: one for each kind of layer, one for head and loss.

A program belongs to the class of a part, not to a module. Weights are its inputs, and so are the factors by which
layers differ (`lift_factors`): layers of one kind share a program, and so do all models of one shape that this process
trains, whatever their seeds and rates. It is of fixed shapes and draws the random numbers of the eager program: what a
run computes does not depend on which runs came before it.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ablate.models import Model
from ablate.norms.residuals import lift_factors

KEPT = 16
"""Shapes whose programs a process keeps; one more, and it begins anew."""
_PROGRAMS = 64
"""Programs of one kind of module and one shape, beyond which torch would compute without: placements times kinds of
layers."""
_shapes: set[str] = set()


def has_compiler() -> bool:
    """Return whether this machine can compile: it has a GPU, whose compiler torch brings, or a C++ compiler."""
    return torch.cuda.is_available() or any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def allow_programs(count: int) -> None:
    """Let torch compile at least `count` programs of one kind of module. Beyond its limit it computes without any, and
    only warns."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, count)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, count)


def keep_programs(shapes: str) -> None:
    """Keep the programs of this process for a run of `shapes`, unless they are of too many others."""
    from torch._dynamo import config

    config.skip_nnmodule_hook_guards = False  # or a hook on a part of a layer is not called if an earlier run had none
    if shapes not in _shapes and len(_shapes) == KEPT:
        forget_programs()
    _shapes.add(shapes)
    allow_programs(KEPT * _PROGRAMS)


def forget_programs() -> None:
    """Let the next run compile anew."""
    torch.compiler.reset()
    _compile.cache_clear()
    _shapes.clear()


class CompiledParts:
    """The layers of a model, and its heads, with their programs. The model itself stays as it is: validations,
    measurements and copies of it compute without."""

    def __init__(self, model: Model) -> None:
        blocks = list(model.blocks())
        for block in blocks:
            lift_factors(block)
        self._programs = [
            (part, functools.partial(_compile(type(part).forward), part)) for part in (*blocks, *model.heads())
        ]

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Within this context, the parts compute by their programs."""
        for part, program in self._programs:
            vars(part)["forward"] = program
        try:
            yield
        finally:
            for part, _ in self._programs:
                del vars(part)["forward"]


@functools.cache
def _compile(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward pass of a class as a function of a module and its inputs, compiled when it is called."""
    return torch.compile(forward, dynamic=False, options={"fallback_random": True})
