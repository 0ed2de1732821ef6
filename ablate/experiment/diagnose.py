"""The measurements in training: which, how often, on how many tokens."""

from __future__ import annotations

import math

from pydantic import Field

from ablate.config.base import Config, Names
from ablate.config.bounds import MOST_ITEMS, MOST_STEPS
from ablate.config.errors import Problem, did_you_mean
from ablate.config.formatting import join_words
from ablate.diagnostics.measures import measurements

ALL = "all"
POINTS = 50
"""Maximum points of a curve if the interval is chosen automatically."""
OVERHEAD = 0.25
"""The smallest relative cost of a pass over a part of a batch: small models are not limited by arithmetic."""
GRADIENTS = 0.03
"""Cost of computing the norms of existing gradients, in training steps."""


class DiagnoseConfig(Config):
    """Measurements on the layers during training. They do not change any number of the training."""

    what: Names = ()
    """Any of angular, pruning, gradients, jacobian and variance, or all. Empty: no measurements."""
    interval: int | None = Field(None, gt=0, le=MOST_STEPS)
    """Updates between two measurements. None: chosen for each measurement so that it stays within its part of `share`,
    with at most fifty in a run; at the start, at the end and between, or only at the end."""
    share: float = Field(0.01, gt=0, le=1)
    """Share of the training time to spend on measurements if `interval` is None."""
    tokens: int = Field(512, gt=0, le=MOST_ITEMS)
    """Tokens or images of each measurement, from the start of the validation set. Gradients are the update's own."""

    @property
    def names(self) -> tuple[str, ...]:
        """The measurements, in order; empty if there are none."""
        return tuple(name for name in _list_names() if name in self.what or ALL in self.what)

    def every(self, name: str, updates: int, layers: int, part: float) -> int:
        """Return the number of updates between two measurements `name` in a run of `updates`, with a model of so many
        layers and `part` of a batch; more than `updates` means only at the end."""
        if self.interval is not None:
            return self.interval
        cost = GRADIENTS if name == "gradients" else measurements[name].cost(layers) * max(part, OVERHEAD)
        points = math.floor(self.share / len(self.names) * updates / cost)
        return updates + 1 if points < 2 else max(1, -(-updates // min(max(1, points - 2), POINTS)))

    def validate_shapes(self, keeps_shape: bool, title: str) -> list[Problem]:
        """Return the problems with the layers of model `title`, which may change the shape of the hidden state."""
        unfit = [name for name in self.names if measurements[name].needs_same_shape and not keeps_shape]
        if not unfit:
            return []
        fitting = ", ".join(name for name in _list_names() if not measurements[name].needs_same_shape)
        text = f"the layers of model {title} change the shape of the hidden state, which {join_words(unfit)} compare"
        return [Problem("what", f"{text}. Accepted: {fitting}", self.what)]

    def validate(self, fsdp: bool) -> list[Problem]:  # type: ignore[override]
        """Return the problems. With sharded models, gradients cannot be computed at arbitrary times."""
        known = [ALL, *_list_names()]
        problems = [
            Problem("what", f"{_refuse(name)}. Accepted: {', '.join(known)}.{did_you_mean(name, known)}", name)
            for name in self.what
            if name not in known
        ]
        if fsdp and "jacobian" in self.names:
            fitting = ", ".join(name for name in _list_names() if name != "jacobian")
            text = f"jacobian needs whole weights: trainer.strategy=ddp, or {fitting}"
            problems.append(Problem("what", text, self.what))
        return problems


def _list_names() -> list[str]:
    """Return the measurements that can be taken in training."""
    return [name for name, measurement in measurements.items() if measurement.during_training]


def _refuse(name: str) -> str:
    """Return why a measurement is not accepted."""
    return "too expensive in training; ablate diagnose takes it" if name in measurements else "unknown measurement"
