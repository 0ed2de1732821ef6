"""Muon, which is for matrices, and AdamW on all else, as one optimizer.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) replaces the momentum of a matrix by the nearest
orthogonal matrix. Where a parameter holds several matrices, as query, key and value do here, each is orthogonalised on
its own: an update of the fused matrix would be orthogonal across them, with the scale of another shape.

Several ranks share the work, whether they have shards of the matrices or copies: each has whole matrices in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ablate.distributed import ranks
from ablate.distributed.matrices import Exchange, Fused, Turns, find_own, take_turns
from ablate.models.base import Model, strip_wrapper


def list_fused(module: nn.Module) -> dict[nn.Parameter, Fused]:
    """Return the parameters of one of Ablate's models in which several matrices are fused, with these; empty for other
    models."""
    if not isinstance(module, Model):
        return {}
    if module.fused_matrices is not None:
        named = {strip_wrapper(name): parameter for name, parameter in module.named_parameters()}
        return {named[name]: fused for name, fused in module.fused_matrices.items()}
    rows: dict[nn.Parameter, list[int]] = {}
    for projection in module.projections():
        whole = projection.weight._base
        if isinstance(whole, nn.Parameter):
            rows.setdefault(whole, []).append(len(projection.weight))
    # a matrix may lie transposed in it
    return {whole: Fused(each) for whole, each in rows.items() if sum(each) == len(whole)}


@dataclass
class _Whole:
    """A whole matrix on the rank that updates it."""

    weight: nn.Parameter
    """With its gradient."""
    state: dict[str, Any] = field(default_factory=dict)


class MuonWithAdamW(Optimizer):
    """One optimizer made of two: `muon` on matrices and `adamw` on the rest; its groups are in this order. Its state is
    that of both, by parameter; of a parameter with shards it has shards."""

    def __init__(self, muon: Optimizer, adamw: Optimizer, fused: Mapping[nn.Parameter, Fused]) -> None:
        self.muon, self.adamw, self.fused = muon, adamw, fused
        self._turns: dict[tuple[nn.Parameter, ...], Turns] = {}
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
        matrices = [p for group in self.muon.param_groups for p in group["params"] if p.grad is not None]
        if ranks.world_size() == 1 or any(p.is_meta for p in matrices):  # of a plan, which one rank makes alone
            self._update({p: _Whole(p, self.state[p]) for p in matrices})
        else:  # those of one turn have the same kind of state
            for are_new in (False, True):
                self._update_in_turns([p for p in matrices if are_new is not bool(self.state[p])])
        self.adamw.step()
        return loss

    def _update(self, own: Mapping[nn.Parameter, _Whole]) -> None:
        """Let Muon update some whole matrices, those of fused parameters one by one."""
        parts = {p: _cut(own[p], self.fused[p]) for p in own if p in self.fused}
        plain = {p: parts.get(p, [whole]) for p, whole in own.items()}
        self.muon.state = defaultdict(dict, {one.weight: one.state for each in plain.values() for one in each})
        all_of = [group["params"] for group in self.muon.param_groups]
        for group in self.muon.param_groups:
            group["params"] = [one.weight for p in group["params"] for one in plain.get(p, ())]
        try:
            self.muon.step()
        finally:
            for group, parameters in zip(self.muon.param_groups, all_of, strict=True):
                group["params"] = parameters
        for parameter, matrices in parts.items():
            _join(own[parameter], matrices, self.fused[parameter])

    def _update_in_turns(self, matrices: list[nn.Parameter]) -> None:
        """Update `matrices`, of which each rank has a shard or a copy. While the ranks update those of one turn, those
        of the next are gathered, and those of the turn before are sent back."""
        if not matrices:
            return
        if (key := tuple(matrices)) not in self._turns:
            self._turns[key] = take_turns(matrices)
        turns = self._turns[key]
        coming: _Turn | None = None
        sent: list[Exchange] = []
        for turn in turns.turns:
            before, coming = coming, _Turn(self.state, turns, turn, [matrices[index] for index in turn])
            if before:
                sent = self._finish(before, sent)
        if coming:
            sent = self._finish(coming, sent)
        _wait(sent)

    def _finish(self, turn: _Turn, sent: list[Exchange]) -> list[Exchange]:
        """Update the matrix of this rank in a turn; return the exchanges that send it back. `sent`: those of the turn
        before."""
        own = turn.receive()
        self._update(own)
        _wait(sent)
        sent.clear()  # and their buffers
        return turn.send_back(own)


class _Turn:
    """A turn of the ranks: what is gathered, and sent back."""

    def __init__(self, state: Any, turns: Turns, numbers: Sequence[int], parameters: Sequence[nn.Parameter]) -> None:
        """Start to gather weights, gradients and states."""
        self._turns, self._numbers, self._parameters = turns, numbers, parameters
        self._states = [state[parameter] for parameter in parameters]
        mesh = getattr(parameters[0], "device_mesh", None)  # its shards may lie on the CPU
        self._device = torch.device(mesh.device_type) if mesh else parameters[0].device
        gradients = [parameter.grad for parameter in parameters]
        shared = [key for key, value in self._states[0].items() if _is_shared(value, parameters[0])]
        tensors = {"weight": parameters, "gradient": gradients}
        tensors |= {key: [state[key] for state in self._states] for key in shared}
        gathered = {key: self._gather(values) for key, values in tensors.items()}
        self._whole = {key: whole for key, (whole, _) in gathered.items()}
        self._exchanges = [exchange for _, exchange in gathered.values()]

    def _gather(self, values: Sequence[Any]) -> tuple[Tensor | None, Exchange]:
        return self._turns.gather(self._numbers, [find_own(value) for value in values], self._device)

    def receive(self) -> dict[nn.Parameter, _Whole]:
        """Return the matrix that this rank updates, as a dictionary with its parameter; empty if it has none."""
        _wait(self._exchanges)
        self._exchanges = []  # and their buffers
        if (place := ranks.rank()) >= len(self._numbers):
            return {}
        weight, gradient = self._whole.pop("weight"), self._whole.pop("gradient")
        assert weight is not None
        weight = nn.Parameter(weight, requires_grad=False)
        weight.grad = gradient
        state, self._whole = {**self._states[place], **self._whole}, {}
        return {self._parameters[place]: _Whole(weight, state)}

    def send_back(self, own: Mapping[nn.Parameter, _Whole]) -> list[Exchange]:
        """Start to send back what `receive` returned, now updated."""
        (whole,) = own.values() or [None]
        if not self._states[0]:
            self._begin_states(whole)
        keys = [key for key, value in self._states[0].items() if isinstance(value, Tensor)]
        weights = self._spread(whole.weight if whole else None, self._parameters)
        states = [
            self._spread(whole.state[key] if whole else None, [state[key] for state in self._states]) for key in keys
        ]
        return [weights, *states]

    def _spread(self, whole: Tensor | None, values: Sequence[Tensor]) -> Exchange:
        return self._turns.spread(self._numbers, whole, [find_own(value) for value in values], self._device)

    def _begin_states(self, whole: _Whole | None) -> None:
        """Give each parameter of the turn a state, after the first update: only the rank that made it has one."""
        shared = [key for key, value in whole.state.items() if _is_shared(value, whole.weight)] if whole else []
        others = {key: value for key, value in whole.state.items() if key not in shared} if whole else {}
        told = ranks.gather_objects((shared, others))
        for parameter, state, (keys, values) in zip(self._parameters, self._states, told, strict=False):
            state |= {**{key: torch.zeros_like(parameter) for key in keys}, **values}


def _is_shared(value: Any, parameter: Tensor) -> bool:
    """Return whether a part of the state is one number for each of the parameter's."""
    return isinstance(value, Tensor) and value.shape == parameter.shape


def _wait(exchanges: Sequence[Exchange]) -> None:
    for exchange in exchanges:
        exchange.finish()


def _cut(whole: _Whole, fused: Fused) -> list[_Whole]:
    """Return the matrices that are fused in one: their values, gradients and states are views of its own, unless ranks
    share each of them; single numbers of a state are copies."""
    assert whole.weight.grad is not None
    matrices = []
    for part, gradient in zip(fused.cut(whole.weight.detach()), fused.cut(whole.weight.grad), strict=True):
        matrices.append(_Whole(nn.Parameter(part, requires_grad=False)))
        matrices[-1].weight.grad = gradient
    for key, value in whole.state.items():
        parts = fused.cut(value) if _is_shared(value, whole.weight) else None
        for index, matrix in enumerate(matrices):
            matrix.state[key] = parts[index] if parts else value.clone() if isinstance(value, Tensor) else value
    return matrices


def _join(whole: _Whole, matrices: Sequence[_Whole], fused: Fused) -> None:
    """Write the new values and states of `matrices` into the whole."""
    fused.join([matrix.weight for matrix in matrices], whole.weight.detach())
    for key, value in matrices[0].state.items():
        if not (isinstance(value, Tensor) and value.ndim):
            whole.state[key] = value
            continue
        parts = [matrix.state[key] for matrix in matrices]
        if key not in whole.state:
            whole.state[key] = torch.cat(parts)
        fused.join(parts, whole.state[key])
    for matrix in matrices:
        matrix.state.clear()  # after the first update it has memory of its own
