"""The measurements in training: which, how often, on how many tokens."""

from __future__ import annotations

import math

from pydantic import Field

from ablate.config.base import Config, Names
from ablate.config.bounds import MOST_ITEMS, MOST_STEPS
from ablate.config.errors import Problem, did_you_mean
from ablate.diagnostics.measures import measurements

ALL = "all"
POINTS = 50
"""The most points of a curve where the interval is chosen."""
OVERHEAD = 0.25
"""The least share of a pass over the whole batch that one over a part of it takes: small models do not wait for the
arithmetic."""
GRADIENTS = 0.03
"""What it takes, in training steps, to take the norms of gradients that are there."""


class DiagnoseConfig(Config):
    """Measurements on the layers while a model is trained. They read, and change no number of the training."""

    what: Names = ()
    """angular, pruning, gradients, jacobian, variance, any of them, or all. Nothing: they are off."""
    interval: int | None = Field(None, gt=0, le=MOST_STEPS)
    """Updates between two measurements. None: for each as many as its share of `share` allows, at most fifty in a run;
    at the start, at the end and between, or at the end alone."""
    share: float = Field(0.01, gt=0, le=1)
    """The part of the time of training that is meant to go into it, where `interval` is None."""
    tokens: int = Field(512, gt=0, le=MOST_ITEMS)
    """Tokens or images of each measurement: the first of the validation set. Gradients are those of the update."""

    @property
    def names(self) -> tuple[str, ...]:
        """The measurements, in their order; empty where they are off."""
        return tuple(name for name in measurements if name in self.what or ALL in self.what)

    def every(self, name: str, updates: int, layers: int, part: float) -> int:
        """Return the updates between two of the measurements `name` in a run of so many, with a model of so many layers
        and `part` of a batch; more than `updates`: at the end alone."""
        if self.interval is not None:
            return self.interval
        cost = GRADIENTS if name == "gradients" else measurements[name].cost(layers) * max(part, OVERHEAD)
        points = math.floor(self.share / len(self.names) * updates / cost)
        return updates + 1 if points < 2 else max(1, -(-updates // min(max(1, points - 2), POINTS)))

    def validate(self, fsdp: bool) -> list[Problem]:  # type: ignore[override]
        """Return what is wrong. Where models are sharded, gradients cannot be asked for at will."""
        known = [ALL, *measurements]
        problems = [
            Problem("what", f"unknown measurement. Accepted: {', '.join(known)}.{did_you_mean(name, known)}", name)
            for name in self.what
            if name not in known
        ]
        if fsdp and "jacobian" in self.names:
            fitting = ", ".join(name for name in measurements if name != "jacobian")
            text = f"jacobian needs whole weights: trainer.strategy=ddp, or {fitting}"
            problems.append(Problem("what", text, self.what))
        return problems
