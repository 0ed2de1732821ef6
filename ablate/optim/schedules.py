"""Learning-rate schedules: their configurations and the learning-rate factor of each update."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.bounds import MOST_STEPS
from ablate.config.lazy import torch
from ablate.config.registry import Registry

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LambdaLR
    from typing_extensions import Self


class ScheduleConfig(Kind):
    """A learning-rate schedule: a linear warm-up, then a course that depends on the kind. These fields are common to
    all kinds."""

    kind: str
    warmup_steps: int | None = Field(None, ge=0, le=MOST_STEPS)
    """Updates of the warm-up, instead of `warmup_fraction`."""
    warmup_fraction: float = Field(0.1, ge=0, lt=1)
    """Warm-up as a share of all updates; used if `warmup_steps` is not given."""

    def warmup(self, max_steps: int) -> int:
        """Return the number of warm-up updates out of `max_steps`."""
        return round(self.warmup_fraction * max_steps) if self.warmup_steps is None else self.warmup_steps

    def decay(self, progress: float) -> float:
        """Return the factor on the peak learning rate after the warm-up, at `progress` in (0, 1]; 1 is the last
        update."""
        raise NotImplementedError

    def factor(self, step: int, max_steps: int) -> float:
        """Return the factor on the peak learning rate of the update after `step` updates (from 0 to `max_steps` - 1).

        The first update uses 1/warmup of the peak, never 0; the last uses `decay(1)`, and later updates do too.
        """
        warmup = self.warmup(max_steps)
        if step < warmup:
            return (step + 1) / warmup
        return self.decay(min(1.0, (step - warmup + 1) / max(1, max_steps - warmup)))

    def count_shared(self, max_steps: int) -> int:
        """Return how many first updates a run of `max_steps` has in common with longer runs of the same warm-up in
        updates: those before its decay. 0: it differs from the first update on; `max_steps`: it never decays."""
        return 0

    def shorten(self, max_steps: int, updates: int) -> Self:
        """Return the schedule of a run of `updates` that begins as this one does in a run of `max_steps`: with the same
        warm-up in updates, or with the same share of it where the two have nothing in common."""
        warmup = self.warmup(max_steps)
        kept = warmup if self.count_shared(max_steps) else min(updates - 1, round(warmup * updates / max_steps))
        return self.model_copy(update={"warmup_steps": kept})

    def build(self, optimizer: Optimizer, max_steps: int) -> LambdaLR:
        """Return the scheduler, which must be stepped after every update."""
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: self.factor(step, max_steps))


schedules: Registry[ScheduleConfig] = Registry("schedule", ScheduleConfig, default="cosine")


@schedules.register
class Cosine(ScheduleConfig):
    """Warm-up, then a half cosine down to `final_fraction` of the peak."""

    kind: Literal["cosine"] = "cosine"
    final_fraction: float = Field(0.1, ge=0, le=1)
    """Learning rate of the last update as a share of the peak."""

    def decay(self, progress: float) -> float:
        return self.final_fraction + (1 - self.final_fraction) * 0.5 * (1 + math.cos(math.pi * progress))


@schedules.register
class Linear(ScheduleConfig):
    """Warm-up, then a straight line down from the peak. The update after the last one would be at `final_fraction` of
    the peak: the line ends at zero, and every update changes the weights."""

    kind: Literal["linear"] = "linear"
    final_fraction: float = Field(0.0, ge=0, le=1)
    """The end of the line as a share of the peak."""

    def factor(self, step: int, max_steps: int) -> float:
        if step < (warmup := self.warmup(max_steps)):
            return super().factor(step, max_steps)
        return 1 - (1 - self.final_fraction) * (min(step, max_steps - 1) - warmup) / (max_steps - warmup)


@schedules.register
class Constant(ScheduleConfig):
    """Warm-up, then constant at the peak."""

    kind: Literal["constant"] = "constant"

    def decay(self, progress: float) -> float:
        return 1.0

    def count_shared(self, max_steps: int) -> int:
        return max_steps


@schedules.register
class Wsd(ScheduleConfig):
    """Warm-up, the peak, then a decay over the last updates down to `final_fraction` of the peak. Warmup, stable,
    decay: Hu et al. 2024, arXiv 2404.06395; the shapes: Hagele et al. 2024, arXiv 2405.18392."""

    kind: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(0.2, ge=0, le=1)
    """Length of the decay as a share of all updates; it never overlaps the warm-up."""
    shape: Literal["1-sqrt", "linear"] = "1-sqrt"
    """Shape of the decay: as the square root of the completed share of the decay, or linear in that share."""
    final_fraction: float = Field(0.1, ge=0, le=1)
    """Learning rate of the last update as a share of that before the decay."""

    def decay(self, progress: float) -> float:
        return 1.0

    def hold(self, update: int, warmup: int) -> float:
        """Return the factor of an update between warm-up and decay, counted from 1."""
        return 1.0

    def count_shared(self, max_steps: int) -> int:
        return max(self.warmup(max_steps), max_steps - round(self.decay_fraction * max_steps))

    def factor(self, step: int, max_steps: int) -> float:
        warmup, start = self.warmup(max_steps), self.count_shared(max_steps)
        if step < warmup:
            return super().factor(step, max_steps)
        held = self.hold(max(1, min(step + 1, start)), warmup)
        if step < start or start == max_steps:
            return held
        progress = min(1.0, (step - start + 1) / (max_steps - start))
        fall = math.sqrt(progress) if self.shape == "1-sqrt" else progress
        return held * (1 - (1 - self.final_fraction) * fall)


@schedules.register
class Power(Wsd):
    """Warm-up, then a power of the number of updates, which does not depend on the length of the run, and at the end
    the decay of wsd. Shen et al. 2024, arXiv 2408.13359, where the power is of the tokens, -0.51."""

    kind: Literal["power"] = "power"  # type: ignore[assignment]
    exponent: float = Field(0.51, ge=0, le=4)
    """The rate falls as the number of updates to the power of minus this. 0.5: the inverse square root."""
    from_step: int | None = Field(None, gt=0, le=MOST_STEPS)
    """The update at which the rate begins to fall; it is at the peak between the warm-up and this update. None: the
    end of the warm-up."""

    def hold(self, update: int, warmup: int) -> float:
        return min(1.0, ((self.from_step or max(1, warmup)) / update) ** self.exponent)


schedules.preset("1-sqrt", "wsd", "Hagele et al. 2024", shape="1-sqrt", final_fraction=0.0)
