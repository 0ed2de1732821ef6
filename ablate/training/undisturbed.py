"""Measuring a model during its training without affecting the training."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Set `model` to evaluation mode in this context; restore its modes and all random states afterwards."""
    training = [module for module in model.modules() if module.training]
    try:
        with keep_random_states([p.device for p in model.parameters() if p.is_cuda][:1]):
            model.eval()
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def keep_random_states(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """The random states of Python, numpy and torch, of the CPU and of the CUDA `devices`, are then what they were."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
