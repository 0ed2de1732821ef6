"""What an update of the optimizer needs beside the gradients, from one that is made on the meta device."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ablate.config.errors import AblateError
from ablate.estimate.tracing import shorten_layers
from ablate.models import Model
from ablate.optim.muon import MuonWithAdamW
from ablate.optim.optimizers import OptimizerConfig, build_optimizer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Update:
    """What an update needs."""

    states: float = 2.0
    """Bytes that the optimizer keeps for each byte of a trained weight, without single numbers such as a count of
    updates."""
    flops: float = 0.0
    """FLOPs of products of matrices, as Muon has them."""
    matrices: float = 0.0
    """Bytes of the weights that ranks take in turn, each whole (`MuonWithAdamW`)."""
    largest: float = 0.0
    """Bytes of the largest of them."""
    matrix_states: float = 0.0
    """Bytes that the optimizer keeps for each byte of these."""


def measure_update(model: Model, config: OptimizerConfig, half: bool) -> Update:
    """Return what an update of the trained weights of `model`, which is on the meta device, needs. It is taken for
    AdamW's where nothing is trained, or an update of a plugin cannot be made on the meta device.

    Args:
        model: is not changed. Of layers that are alike one is measured.
        config: the optimizer.
        half: whether weights and states have two bytes each, and not four.
    """
    with torch.device("meta"), shorten_layers(model, "bf16-true" if half else "32-true") as runs:
        short = copy.deepcopy(model)
    times = {p: 1 + more for layer, more in runs for p in list(short.blocks())[layer].parameters()}
    trained = {p: times.get(p, 1) for p in short.parameters() if p.requires_grad}
    try:
        optimizer = build_optimizer(config, short)
        flops = _count_flops(optimizer, [*trained])
        if flops:  # of products it is not known to whose update they belong
            alike = {count: [p for p, own in trained.items() if own == count] for count in trained.values()}
            flops = sum(count * _count_flops(optimizer, own) for count, own in alike.items())
    except AblateError:
        raise
    except Exception as error:  # of a plugin: its run reports the error, if there is one
        _LOG.warning("The state of optimizer %s is planned as AdamW's: %s", config.kind, error)
        return Update()
    matrices = _list_matrices(optimizer)
    own = {p: trained[p] for p in matrices}
    return Update(
        _count_states(optimizer, trained),
        flops,
        float(sum(count * p.nbytes for p, count in own.items())),
        float(max((p.nbytes for p in matrices), default=0)),
        _count_states(optimizer, own) if own else 0.0,
    )


def _list_matrices(optimizer: Optimizer) -> list[nn.Parameter]:
    groups = optimizer.muon.param_groups if isinstance(optimizer, MuonWithAdamW) else []
    return [p for group in groups for p in group["params"]]


def _count_states(optimizer: Optimizer, times: dict[nn.Parameter, int]) -> float:
    """Return the bytes of the state of some parameters, each of which stands for so many, for each byte of them."""
    kept = 0
    for parameter, count in times.items():
        values = tree_leaves(optimizer.state.get(parameter, {}))
        kept += count * sum(value.nbytes for value in values if isinstance(value, Tensor) and value.ndim)
    return kept / sum(count * p.nbytes for p, count in times.items()) if times else Update.states


def _count_flops(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> float:
    """Return the FLOPs of products of matrices in an update of some parameters."""
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    counter = FlopCounterMode(display=False)
    with counter, _Ones():
        optimizer.step()
    for parameter in parameters:
        parameter.grad = None
    return float(counter.get_total_flops())


class _Ones(TorchDispatchMode):
    """Within this context, answers with one when an update asks for a number in a tensor of the meta device, which has
    none."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype).item()
        return function(*args, **(kwargs or {}))
