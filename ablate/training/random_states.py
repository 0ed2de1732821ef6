"""The random generators of dropout and stochastic depth: one stream for each part of the batch.

Ranks that read different data draw different masks; ranks that share the matrices of a layer read the same data and
draw the same ones. A checkpoint has the states of all parts, on the CPU and on the devices. Measurements during
training leave them as they are (`undisturbed`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ablate.distributed import ranks

States: TypeAlias = Mapping[str, Tensor]
"""Type of device -> the state of its generator."""


def find_part(strategy: Any) -> tuple[int, int]:
    """Return (the part of each batch that this rank reads, the number of parts); ranks that share matrices read the
    same."""
    part = getattr(strategy, "distributed_sampler_kwargs", {"rank": 0, "num_replicas": 1})
    return part["rank"], part["num_replicas"]


def gather_states(strategy: Any) -> list[States]:
    """Return the states of each part of the batch, on all ranks."""
    kind = strategy.root_device.type
    own = {"cpu": torch.get_rng_state()}
    if kind != "cpu":
        own[kind] = torch.get_device_module(kind).get_rng_state()
    by_part = dict(ranks.gather_objects((find_part(strategy)[0], own)))
    return [by_part[part] for part in sorted(by_part)]


def begin_states(strategy: Any, seed: int) -> None:
    """Give every part except the first, which continues from `seed` like a single process, its own stream."""
    part, _ = find_part(strategy)
    if part:
        torch.manual_seed(_derive_seed(seed, part, 0))


def restore_states(strategy: Any, seed: int, updates: int, saved: Sequence[States]) -> None:
    """Set the states of this rank's part to those that a checkpoint has after so many `updates`. A part without a state
    there, on another device or with another number of parts, begins a new stream."""
    part, count = find_part(strategy)
    states: States = {} if part else {"cpu": saved[0]["cpu"]}
    if len(saved) == count:
        states = saved[part]
    torch.manual_seed(_derive_seed(seed, part, updates))  # of all devices
    kind = strategy.root_device.type
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if kind != "cpu" and kind in states:
        torch.get_device_module(kind).set_rng_state(states[kind])


def _derive_seed(seed: int, part: int, updates: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(part, updates)).generate_state(1, np.uint64)[0])


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
    """Restore the random states of Python, numpy and torch, on the CPU and the CUDA `devices`, after this context."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
