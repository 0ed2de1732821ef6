"""Tensor parallelism: splitting the matrices of a layer over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ablate.distributed.matrices import regroup
from ablate.models import ModelConfig
from ablate.parallel import sharded


def share_matrices(block: Any, config: ModelConfig, mesh: Any) -> None:
    """Give each rank of `mesh` some of the heads of a layer and some of its MLP's features, so that attention and MLP
    each need one sum over the ranks."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan, size = config.tensor_plan(), mesh.size()
    assert plan is not None
    with torch.no_grad():
        for name, weight in block.named_parameters():
            for end, sizes in plan.fused.items():
                if name.endswith(end):
                    weight.copy_(regroup(weight, sizes, size))
    for name in plan.counts:
        setattr(block.attn, name, getattr(block.attn, name) // size)
    styles: dict[str, Any] = {name: ColwiseParallel() for name in plan.by_output}
    parallelize_module(block, mesh, styles | {name: RowwiseParallel() for name in plan.by_input})


def change_fused_rows(
    config: ModelConfig, parts: int, how: Callable[[Tensor, list[int], int], Tensor]
) -> sharded.Change:
    """Return a function that does `how` to the weights that are fused."""
    plan = config.tensor_plan() if parts > 1 else None
    fused = plan.fused if plan else {}

    def change(name: str, weight: Tensor) -> Tensor:
        sizes = next((sizes for end, sizes in fused.items() if name.endswith(end)), None)
        return weight if sizes is None else how(weight, sizes, parts)

    return change
