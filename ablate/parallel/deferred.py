"""Models that are built on the meta device, and given later, part by part, the weights that they would have had.

Every operation that builds the model is written down, with the state of the random generator before each that draws.
Played back for one tensor, they give it bit for bit; no more of the model need be in memory than that tensor. Seeding
each matrix by (seed, parameter name) would be shorter and faster, and would change every number: a sweep begun before
could not go on, since its later trials would start from other weights than its earlier ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True)
class _Step:
    """One operation of the building: what it computes on which tensors, [out] being new ones."""

    operation: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    state: Tensor | None
    """State of the random generator before it, if it draws."""

    @cached_property
    def keys(self) -> set[int]:
        """The storages that it reads, changes or makes."""
        return {_key(leaf) for leaf in tree_leaves((self.args, self.kwargs, self.out)) if _is_meta(leaf)}


def _is_meta(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Recipes(TorchDispatchMode):
    """Records the operations that build a model on the meta device in this context. The generator advances as in a real
    build: each draw is made and discarded."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[_Step] = []
        self._assigned: dict[int, Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        outs = [leaf for leaf in tree_leaves(out) if _is_meta(leaf)]
        inputs = {_key(leaf) for leaf in tree_leaves((args, kwargs)) if _is_meta(leaf)}
        if not outs or not (func._schema.is_mutable or any(_key(leaf) not in inputs for leaf in outs)):
            return out  # nothing of ours, or another view of it
        state = None
        if torch.Tag.nondeterministic_seeded in func.tags:
            state = torch.get_rng_state()
            func(*tree_map(_scratch, args), **{**tree_map(_scratch, kwargs), **_on_cpu(kwargs)})
        self._steps.append(_Step(func, args, kwargs, out, state))
        return out

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Build on the meta device in this context, and record the operations."""
        with self, torch.device("meta"):
            yield

    def assign(self, meta: Tensor, value: Tensor) -> None:
        """Make `value` the value of `meta`, instead of its recorded one."""
        self._assigned[id(meta)] = value

    def tensor(self, meta: Tensor) -> Tensor:
        """Return the value on the CPU of `meta`, which was built in this context."""
        if id(meta) in self._assigned:
            return self._assigned[id(meta)]
        wanted, steps = {_key(meta)}, []
        for step in reversed(self._steps):
            if step.keys & wanted:
                wanted |= step.keys
                steps.append(step)
        tensors: dict[int, Tensor] = {}

        def real(leaf: Any) -> Any:
            if not _is_meta(leaf):
                return leaf
            return tensors[_key(leaf)].as_strided(leaf.size(), leaf.stride(), leaf.storage_offset())

        before = torch.get_rng_state()
        with torch.no_grad():
            for step in reversed(steps):
                if step.state is not None:
                    torch.set_rng_state(step.state)
                kwargs = {**tree_map(real, step.kwargs), **_on_cpu(step.kwargs)}
                out = step.operation(*tree_map(real, step.args), **kwargs)
                for new, old in zip(tree_leaves(out), tree_leaves(step.out), strict=True):
                    if _is_meta(old):
                        tensors.setdefault(_key(old), new)
            torch.set_rng_state(before)
            return real(meta).clone()


def _scratch(leaf: Any) -> Any:
    """Return an empty tensor like `leaf` on the CPU, into which is drawn."""
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="cpu") if _is_meta(leaf) else leaf


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {"device": torch.device("cpu")} if kwargs.get("device") == torch.device("meta") else {}


def defer_weights(build: Callable[[], nn.Module]) -> tuple[Any, Recipes]:
    """Return the result of `build` on the meta device, and the recipes of its tensors."""
    recipes = Recipes()
    with recipes.record():
        return build(), recipes


def materialize(
    module: nn.Module, recipes: Recipes, parameters: dict[int, nn.Parameter], dtype: torch.dtype | None
) -> None:
    """Replace all meta tensors in `module` by their values, on the CPU, in `dtype` (None: their own). `parameters`
    contains the results of earlier calls, so that a weight that two modules share remains shared.
    """
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in parameters:
                    value = recipes.tensor(parameter)
                    parameters[id(parameter)] = nn.Parameter(value.to(dtype), requires_grad=parameter.requires_grad)
                part._parameters[name] = parameters[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_meta:
                part._buffers[name] = recipes.tensor(buffer)
