"""Losses with a known optimum and known noise, in the place of training."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

Objective = Callable[[str, Mapping[str, Any], int], float]
"""(arm, params, seed) -> objective; infinite if it diverges. For rungs a `Staged` one."""


@runtime_checkable
class Staged(Protocol):
    """An objective that also says what a run has reached before its end."""

    def __call__(self, arm: str, params: Mapping[str, Any], seed: int) -> float:
        """Return the objective at the end; infinite if the run diverges."""
        ...

    def at(self, share: float, arm: str, params: Mapping[str, Any], seed: int) -> float:
        """Return the objective at a rung after this share of the updates of a whole run."""
        ...


@dataclass(frozen=True)
class Valley:
    """A loss that is quadratic in the logarithm of the learning rate, with normal noise that depends on the seed.

    The noise of a seed has a part that all arms share, since they see the same data in the same order, and a part of
    each run's own.
    """

    floors: Mapping[str, float]
    """Arm -> loss at its best learning rate."""
    best_lr: float = 3e-3
    """The learning rate of the floor."""
    curvature: float = 0.4
    """Loss at ten times the best learning rate, or a tenth, above the floor."""
    shared: float = 0.02
    """Standard deviation of the seed's effect that is common to all arms."""
    own: float = 0.01
    """Standard deviation of each run's own noise."""
    entropy: int = 0
    """A seed of the noise, besides arm, settings and seed."""
    start: float = 1.0
    """Loss above its end at the beginning of a run, which falls with the logarithm of the share of its updates."""
    drift: float = 0.0
    """How many decades the best learning rate at a rung of a tenth of the length is above that of the whole run; at
    others as the square of the decades that they are shorter by."""
    early: float = 1.0
    """The factor on the own noise of a run for each decade that a rung is shorter."""

    def at(self, share: float, arm: str, params: Mapping[str, Any], seed: int) -> float:
        """Return the loss at a rung after this share of the updates."""
        decades = -math.log10(share)
        best = self.find_best_rate(arm) * 10 ** (self.find_drift(arm) * decades**2)
        mean = self.floors[arm] + self.curvature * math.log10(params["optimizer.lr"] / best) ** 2
        common = self.shared * draw_normal(self.entropy, seed)
        alone = draw_normal(self.entropy, seed, arm, params["optimizer.lr"], share)
        return mean + self.start * decades + common + self.own * self.early**decades * alone

    def find_best_rate(self, arm: str) -> float:
        """Return the learning rate of the floor of an arm."""
        return self.best_lr

    def find_drift(self, arm: str) -> float:
        """Return the drift of the best learning rate of an arm."""
        return self.drift

    def mean(self, arm: str, params: Mapping[str, Any]) -> float:
        """Return the expectation over seeds: the result of an infinite confirmation."""
        return self.floors[arm] + self.curvature * math.log10(params["optimizer.lr"] / self.find_best_rate(arm)) ** 2

    def __call__(self, arm: str, params: Mapping[str, Any], seed: int) -> float:
        common = draw_normal(self.entropy, seed)
        alone = draw_normal(self.entropy, seed, arm, params["optimizer.lr"])
        return self.mean(arm, params) + self.shared * common + self.own * alone


def draw_uniform(*key: object) -> tuple[float, float]:
    """Return two numbers between 0 and 1, always the same for the same `key`, in microseconds."""
    first, second = struct.unpack("QQ", hashlib.blake2b(repr(key).encode(), digest_size=16).digest())
    return (first + 0.5) / 2**64, (second + 0.5) / 2**64


def draw_normal(*key: object) -> float:
    """Return a standard normal number, always the same for the same `key` (Box and Muller 1958)."""
    first, second = draw_uniform(*key)
    return math.sqrt(-2 * math.log(first)) * math.cos(2 * math.pi * second)
