"""Scaling a model as its parametrisation says: initial weights, and multipliers that are part of the model."""

from __future__ import annotations

import torch
from torch import nn

from ablate.config.errors import ConfigError, Problem
from ablate.models.base import Model, unwrap
from ablate.norms import Placement, Stack
from ablate.norms.gates import GatedSum
from ablate.norms.residuals import Multiplier
from ablate.optim.groups import list_wired
from ablate.optim.parametrizations import Multipliers


@torch.no_grad()
def scale_model(model: Model, multipliers: Multipliers, norm: Placement, stack: Stack) -> None:
    """Scale an initialised `model`, and let its optimizer know the factors of its parameters.

    Weights that a placement initialises itself (DeepNorm) are Xavier's, which fall with the root of the width already.
    Raises ConfigError for a placement whose wiring leaves no place for a multiplier of its branches.
    """
    check_places(model)
    model.multipliers = multipliers
    if multipliers.hidden_init != 1 or multipliers.gate_init != 1:
        for projection in model.projections():
            if projection.layer is None:
                continue
            if projection.role not in norm.at(projection.layer, stack.depth).gains(stack.depth):
                is_gate = projection.role == "headwise_gate"
                projection.weight.mul_(multipliers.gate_init if is_gate else multipliers.hidden_init)
    if multipliers.readout_init != 1:
        for parameter, attribute in list_wired(model).items():
            if attribute == "readouts":
                parameter.mul_(multipliers.readout_init)
    if multipliers.output != 1:
        model.scale_output(Multiplier(multipliers.output))
    if multipliers.queries != 1:
        model.scale_queries(multipliers.queries)
    if multipliers.residual != 1:
        for block in model.blocks():
            _scale_branches(unwrap(block), multipliers.residual, norm)


def check_places(model: Model) -> None:
    """Raise ConfigError for a model of a family that says `scales` and has no places for the multipliers."""
    missing = [name for name in ("scale_output", "scale_queries") if getattr(type(model), name) is getattr(Model, name)]
    if missing:
        text = f"says scales, and its model has no {' and no '.join(missing)} (docs/reference/model-family.md)"
        raise ConfigError([Problem("model.kind", text, model.config.kind)])


def _scale_branches(block: nn.Module, factor: float, norm: Placement) -> None:
    """Put a multiplier in front of the stochastic depth of each branch of a layer."""
    branches = [getattr(block, name) for name in ("attn_residual", "mlp_residual") if hasattr(block, name)]
    if not branches:
        text = "has no place for a multiplier of branches: its layers call neither attn_residual nor mlp_residual"
        raise ConfigError([Problem("model.kind", text)])
    for residual in branches:
        residual = residual.inner if isinstance(residual, GatedSum) else residual
        drop = getattr(residual, "drop", None)
        if not isinstance(drop, nn.Module):
            text = f"placement {norm.kind} has no place for a multiplier: its wiring does not call site.drop() as drop"
            raise ConfigError([Problem("parametrization.kind", text)])
        residual.drop = Multiplier(factor) if isinstance(drop, nn.Identity) else nn.Sequential(Multiplier(factor), drop)
