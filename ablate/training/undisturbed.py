"""Measuring a model in the middle of its training, without training seeing it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode for a while; its modes and all random states are then what they were."""
    training = [module for module in model.modules() if module.training]
    states = random.getstate(), np.random.get_state()
    devices = [p.device for p in model.parameters() if p.is_cuda][:1]
    try:
        with torch.random.fork_rng(devices):
            model.eval()
            yield
    finally:
        for module in training:
            module.training = True
        random.setstate(states[0])
        np.random.set_state(states[1])
