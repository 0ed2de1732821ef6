"""Muon, which is for matrices, and AdamW on all else, as one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces the momentum of a matrix by the nearest
orthogonal matrix. Where a parameter holds several matrices, as query, key and value do here, each is orthogonalised on
its own: an update of the fused matrix would be orthogonal across them, with the scale of another shape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ablate.models.base import Model

Rows = Mapping[nn.Parameter, Sequence[int]]
"""A parameter in which matrices are fused -> the rows of each."""


def list_fused(module: nn.Module) -> dict[nn.Parameter, list[int]]:
    """Return the parameters of one of Ablate's models in which several matrices are fused, with the rows of each; empty
    for other models."""
    rows: dict[nn.Parameter, list[int]] = {}
    for projection in module.projections() if isinstance(module, Model) else ():
        whole = projection.weight._base
        if isinstance(whole, nn.Parameter):
            rows.setdefault(whole, []).append(len(projection.weight))
    return {whole: each for whole, each in rows.items() if sum(each) == len(whole)}  # a matrix may lie transposed in it


class MuonWithAdamW(Optimizer):
    """One optimizer made of two: `muon` on matrices and `adamw` on the rest; its groups are in this order. Its state is
    that of both, by parameter."""

    def __init__(self, muon: Optimizer, adamw: Optimizer, rows: Rows) -> None:
        self.muon, self.adamw, self.rows = muon, adamw, rows
        super().__init__([*muon.param_groups, *adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters; return what `closure` returns, which computes the gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        count = len(self.muon.param_groups)
        # loading a state gives this optimizer new groups and a new state, which the two have to work on
        self.muon.param_groups, self.adamw.param_groups = self.param_groups[:count], self.param_groups[count:]
        self.adamw.state = self.state
        with self._split():
            self.muon.step()
        self.adamw.step()
        return loss

    @contextmanager
    def _split(self) -> Iterator[None]:
        """Within this context, give Muon the matrices of fused parameters one by one, as views with views of gradient
        and state."""
        whole = [group["params"] for group in self.muon.param_groups]
        parts = {p: _cut(p, self.rows[p]) for own in whole for p in own if p in self.rows and p.grad is not None}
        state: defaultdict[Any, Any] = defaultdict(dict)
        for parameter in (p for own in whole for p in own):
            if parameter not in parts:
                state[parameter] = self.state[parameter]
            elif known := self.state[parameter]:
                state |= zip(parts[parameter], _cut_state(known, parameter, self.rows[parameter]), strict=True)
        self.muon.state = state
        for group in self.muon.param_groups:
            group["params"] = [part for p in group["params"] for part in parts.get(p, [p])]
        try:
            yield
        finally:
            for group, own in zip(self.muon.param_groups, whole, strict=True):
                group["params"] = own
        for parameter, matrices in parts.items():
            _join_state(self.state[parameter], [state.pop(matrix) for matrix in matrices])  # freed one by one


def _cut(parameter: nn.Parameter, rows: Sequence[int]) -> list[nn.Parameter]:
    """Return the matrices in `parameter`, which share its memory, and their gradients its gradient's."""
    assert parameter.grad is not None
    matrices = [nn.Parameter(part) for part in parameter.detach().split(list(rows))]
    for matrix, gradient in zip(matrices, parameter.grad.split(list(rows)), strict=True):
        matrix.grad = gradient
    return matrices


def _cut_state(state: Mapping[str, Any], parameter: Tensor, rows: Sequence[int]) -> list[dict[str, Any]]:
    """Return the state of each matrix: views of tensors with the shape of `parameter`, copies of single numbers."""
    states: list[dict[str, Any]] = [{} for _ in rows]
    for key, value in state.items():
        for index, own in enumerate(states):
            if not isinstance(value, Tensor):
                own[key] = value
            else:
                own[key] = value.split(list(rows))[index] if value.shape == parameter.shape else value.clone()
    return states


def _join_state(state: dict[str, Any], parts: Sequence[Mapping[str, Any]]) -> None:
    """Write the new values of `parts` into `state`; tensors with the shape of the matrices are views of it, except
    after the first update."""
    for key, value in parts[0].items():
        if not (isinstance(value, Tensor) and value.ndim):
            state[key] = value
        elif key not in state:
            state[key] = torch.cat([part[key] for part in parts])
