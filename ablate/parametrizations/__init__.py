"""Parametrisations: how initial weights, learning rates and multipliers change with a model's width and depth, so that
a learning rate found at a small size may hold at a large one."""

from ablate.parametrizations.parametrization import (
    BaseSize,
    Factors,
    Multipliers,
    Parametrization,
    Scaled,
    parametrizations,
)
from ablate.parametrizations.validation import validate_parametrization

__all__ = [
    "BaseSize",
    "Factors",
    "Multipliers",
    "Parametrization",
    "Scaled",
    "parametrizations",
    "validate_parametrization",
]
