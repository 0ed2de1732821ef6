"""Optimizers: their configurations and parameter groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.lazy import LazyModule
from ablate.config.registry import Registry
from ablate.distributed import ranks

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer

    from ablate.models import base as models
else:
    torch = LazyModule("torch")
    models = LazyModule("ablate.models.base")

Beta = Annotated[float, Field(ge=0, lt=1)]
FUSED_DEVICES = ("cpu", "cuda", "mps", "xpu")  # where torch 2.6 and later have fused Adam and AdamW


class OptimizerConfig(Kind):
    """An optimizer. These fields are common to all kinds."""

    kind: str
    lr: float = Field(1e-3, gt=0)
    """Peak learning rate."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Decay rates of the first and second moment."""
    eps: float = Field(1e-8, gt=0)
    """Term added to the root of the second moment."""
    weight_decay: float = Field(0.1, ge=0)
    """Weight decay of matrices. Vectors (norm weights, biases) and ViT's class token and position embedding have
    none."""

    def build(self, model: nn.Module) -> Optimizer:
        """Return the optimizer of `model`'s trainable parameters, in torch's fused implementation where the device has
        one."""
        raise NotImplementedError

    def _build_torch(self, cls: type[torch.optim.Adam], model: nn.Module) -> Optimizer:
        """Return torch's optimizer `cls` with these settings, fused only if the device supports it: torch would
        otherwise fail at the first step."""
        fused = all(p.device.type in FUSED_DEVICES for p in model.parameters())
        return cls(self.groups(model), lr=self.lr, betas=self.betas, eps=self.eps, fused=True if fused else None)

    def groups(self, model: nn.Module) -> list[dict[str, object]]:
        """Return the parameter groups: weight decay for parameters with two or more dimensions that the model does not
        exempt, none for the rest. Each of the two is one group, unless its parameters are sharded over the ranks in
        different ways."""
        exempt = model.no_weight_decay() if isinstance(model, models.Model) else set()
        decaying: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                (decaying if parameter.ndim >= 2 and name not in exempt else others).append(parameter)
        return [
            {"params": alike, "weight_decay": decay}
            for parameters, decay in ((decaying, self.weight_decay), (others, 0.0))
            for alike in ranks.group_by_mesh(parameters) or [[]]
        ]


optimizers: Registry[OptimizerConfig] = Registry("optimizer", OptimizerConfig, default="adamw")


@optimizers.register
class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2017, arXiv 1711.05101). The defaults are those of
    two-stage pre-training: betas 0.9 and 0.95, weight decay 0.1; `adamw-convnext` has the settings of ConvNeXt's
    recipe."""

    kind: Literal["adamw"] = "adamw"

    def build(self, model: nn.Module) -> Optimizer:
        return self._build_torch(torch.optim.AdamW, model)


@optimizers.register
class Adam(OptimizerConfig):
    """Adam (Kingma and Ba 2014, arXiv 1412.6980); its weight decay is an L2 term in the gradient. The papers'
    settings are betas 0.9 and 0.999 and no weight decay."""

    kind: Literal["adam"] = "adam"
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay rates of the first and second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight of the L2 term of matrices and embeddings."""

    def build(self, model: nn.Module) -> Optimizer:
        return self._build_torch(torch.optim.Adam, model)


# Liu et al. 2022, arXiv 2201.03545, table 5: ImageNet-1K, batches of 4096; what Mix-LN trains its ViTs with.
optimizers.preset("adamw-convnext", "adamw", lr=4e-3, betas=(0.9, 0.999), weight_decay=0.05)
