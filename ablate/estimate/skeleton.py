"""A model without values, on the meta device: it needs neither a GPU nor memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ablate.experiment.extensions import restrict
from ablate.experiment.tree import Experiment
from ablate.models import Model


class _Uninitialized(TorchFunctionMode):
    """Skips all initialisation, which is slow and without effect on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or getattr(func, "__name__", "") in _RANDOM:
            return args[0] if args else (kwargs or {}).get("tensor")
        return func(*args, **(kwargs or {}))


_RANDOM = ("normal_", "uniform_", "trunc_normal_")


def build_blank(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> Model:
    """Return the uninitialised model on the meta device, with all parameters trained."""
    with torch.device("meta"), _Uninitialized():
        return experiment.build_model(classes, shape)


def build_skeleton(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> Model:
    """Return the uninitialised model on the meta device, with frozen parts and adapters. Raises ConfigError for unknown
    parts."""
    model = build_blank(experiment, classes, shape)
    with torch.device("meta"), _Uninitialized():
        restrict(model, experiment)
    return model
