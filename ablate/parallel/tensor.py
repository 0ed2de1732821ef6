"""Tensor parallelism: how ranks share the matrices of a layer, and how fused matrices are regrouped for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ablate.config.errors import Problem
from ablate.models import ModelConfig
from ablate.parallel import sharded

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class TensorPlan:
    """The plan by which ranks share the matrices of one kind of model."""

    styles: Callable[[], dict[str, Any]]
    """Module of a layer -> torch's style."""
    fused: Callable[[Any], dict[str, list[int]]]
    """Of a model's configuration: the end of a weight's name -> the rows of the matrices that are fused in it."""
    counts: tuple[str, ...]
    """Attributes of `attn` that count what a rank has its part of."""
    validate: Callable[[Any, int], list[Problem]]
    """Returns what is wrong with a model's configuration for so many ranks."""


def _llama_styles() -> dict[str, Any]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    inner = {"qkv_proj": ColwiseParallel, "o_proj": RowwiseParallel}
    mlp = {"gate_up_proj": ColwiseParallel, "down_proj": RowwiseParallel}
    return {f"attn.{name}": style() for name, style in inner.items()} | {
        f"mlp.{name}": style() for name, style in mlp.items()
    }


def _llama_fused(config: Any) -> dict[str, list[int]]:
    width = config.hidden // config.heads
    kv = (config.kv_heads or config.heads) * width
    return {"qkv_proj.weight": [config.hidden, kv, kv], "gate_up_proj.weight": [config.mlp, config.mlp]}


def _validate_llama(config: Any, size: int) -> list[Problem]:
    sizes = {"heads": config.heads, "kv_heads": config.kv_heads or config.heads, "mlp": config.mlp}
    return [
        Problem(f"model.{k}", f"must be a multiple of trainer.tensor_parallel ({size})", n)
        for k, n in sizes.items()
        if n % size
    ]


TENSOR_PLANS = {"llama": TensorPlan(_llama_styles, _llama_fused, ("heads", "kv_heads"), _validate_llama)}
"""By kind of model."""


def share_matrices(block: Any, config: Any, mesh: Any) -> None:
    """Each rank of `mesh` gets some of the heads of a layer and some of its MLP's features, so that attention and MLP
    each need one sum over the ranks."""
    from torch.distributed.tensor.parallel import parallelize_module

    plan, size = TENSOR_PLANS[config.kind], mesh.size()
    with torch.no_grad():
        for name, weight in block.named_parameters():
            for end, sizes in plan.fused(config).items():
                if name.endswith(end):
                    weight.copy_(regroup(weight, sizes, size))
    for name in plan.counts:
        setattr(block.attn, name, getattr(block.attn, name) // size)
    parallelize_module(block, mesh, plan.styles())


def regroup(weight: Tensor, sizes: list[int], parts: int) -> Tensor:
    """Rows of fused matrices of so many rows, in an order in which the rows of each of `parts` ranks stand together."""
    split = [matrix.chunk(parts) for matrix in weight.split(sizes)]
    return torch.cat([matrix[part] for part in range(parts) for matrix in split])


def ungroup(weight: Tensor, sizes: list[int], parts: int) -> Tensor:
    """Undo `regroup`."""
    split = weight.split([size // parts for _ in range(parts) for size in sizes])
    return torch.cat([split[part * len(sizes) + matrix] for matrix in range(len(sizes)) for part in range(parts)])


def change_fused_rows(
    config: ModelConfig, parts: int, how: Callable[[Tensor, list[int], int], Tensor]
) -> sharded.Change:
    """Return a function that does `how` to the weights that are fused."""
    fused = TENSOR_PLANS[config.kind].fused(config) if parts > 1 else {}

    def change(name: str, weight: Tensor) -> Tensor:
        sizes = next((sizes for end, sizes in fused.items() if name.endswith(end)), None)
        return weight if sizes is None else how(weight, sizes, parts)

    return change
