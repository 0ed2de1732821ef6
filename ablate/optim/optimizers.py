"""Optimizers: the base of all configurations, Adam and AdamW. Optimizers of torch and timm by name: `by_name`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import join_first
from ablate.config.lazy import torch
from ablate.config.registry import Registry
from ablate.optim.groups import Groups, assign_roles, list_exempt, list_factors, set_eps, split_parameters

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ablate.optim.parametrizations import Factors

Beta = Annotated[float, Field(ge=0, lt=1)]
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")  # where torch 2.6 and later have fused Adam and AdamW
_NAMED = 5  # parameters that a message names


class OptimizerConfig(Kind):
    """An optimizer. These fields are common to all kinds."""

    kind: str
    lr: float = Field(1e-3, gt=0)
    """Peak learning rate."""
    weight_decay: float = Field(0.1, ge=0)
    """Weight decay of matrices. Vectors (norm weights, biases), ViT's class token and position embedding never
    decay."""
    groups: Groups | None = None
    """Learning rate and weight decay of parameters by role. None: one learning rate."""

    @property
    def scales(self) -> bool:
        """Whether the factors of a parametrisation are right for its updates: those of Adam and Muon."""
        return False

    @property
    def multiplies(self) -> bool:
        """Whether an update may multiply matrices, so that its FLOPs count."""
        return False

    def build(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of `model`'s trainable parameters. `build_optimizer` calls it and checks the groups."""
        raise NotImplementedError

    def build_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Return the parameter groups, in the optimizer's order. The first has the rate `lr`."""
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        return self._split(model, trained, self.lr)

    def _split(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        lr: float,
        factors: Mapping[str, Factors] | None = None,
    ) -> list[dict[str, Any]]:
        """Return the groups of some of `model`'s parameters, for an optimizer with the rate `lr`. `factors`: those that
        replace the parametrisation's for Adam."""
        factors = list_factors(model) if factors is None else factors
        roles, exempt = assign_roles(model), list_exempt(model)
        return split_parameters(parameters, roles, exempt, self.groups, lr, self.weight_decay, factors)

    def validate(self, sharded: bool) -> list[Problem]:  # type: ignore[override]
        """Return the problems between these fields. `sharded`: the training uses fsdp."""
        return []


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> Optimizer:
    """Return the optimizer of `config` for `model`. Raises ConfigError if a trainable parameter is in no group."""
    optimizer = config.build(model)
    grouped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if missing := [name for name, p in model.named_parameters() if p.requires_grad and p not in grouped]:
        text = (
            f"leaves trainable parameters out: {join_first(missing, _NAMED)}. "
            "Each must be in a group, as build_groups(model) puts them"
        )
        raise ConfigError([Problem("optimizer.kind", text, config.kind)])
    return optimizer


def build_adamw(groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> Optimizer:
    """Return torch's AdamW, fused if the device supports it."""
    return _build_fused(torch.optim.AdamW, groups, lr, betas, eps)


def _build_fused(
    cls: type[torch.optim.Adam], groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float
) -> Optimizer:
    """Return `cls`, an optimizer of torch, fused if the device supports it: torch itself would refuse only at the first
    update."""
    fused = all(p.device.type in FUSED_DEVICES for group in groups for p in group["params"])
    return cls(groups, lr=lr, betas=betas, eps=eps, fused=True if fused else None)


optimizers: Registry[OptimizerConfig] = Registry("optimizer", OptimizerConfig, default="adamw")


class AdamConfig(OptimizerConfig):
    """The common base of Adam and AdamW."""

    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""

    @property
    def scales(self) -> bool:
        return True

    def build_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        return set_eps(super().build_groups(model), self.eps)


@optimizers.register
class AdamW(AdamConfig):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv 1711.05101). The defaults are those of
    two-stage pre-training: betas 0.9 and 0.95, weight decay 0.1; `adamw-convnext` has the settings of ConvNeXt's
    recipe."""

    kind: Literal["adamw"] = "adamw"

    def build(self, model: nn.Module) -> Optimizer:
        return build_adamw(self.build_groups(model), self.lr, self.betas, self.eps)


@optimizers.register
class Adam(AdamConfig):
    """Adam (Kingma and Ba 2014, arXiv 1412.6980); its weight decay is an L2 term in the gradient. The papers'
    settings are betas 0.9 and 0.999 and no weight decay."""

    kind: Literal["adam"] = "adam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight of the L2 term of matrices and embeddings."""

    def build(self, model: nn.Module) -> Optimizer:
        return _build_fused(torch.optim.Adam, self.build_groups(model), self.lr, self.betas, self.eps)


# Liu et al. 2022, arXiv 2201.03545, table 5: ImageNet-1K, batches of 4096; what Mix-LN trains its ViTs with.
optimizers.preset("adamw-convnext", "adamw", lr=4e-3, betas=(0.9, 0.999), weight_decay=0.05)
