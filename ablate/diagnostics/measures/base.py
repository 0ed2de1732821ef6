"""What a measurement is: one class, streamed over batches, whose numbers are rows and whose picture it draws."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from torch import Tensor, nn

from ablate.config.errors import AblateError, did_you_mean
from ablate.diagnostics.measures.subject import Batch, Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metric = Callable[[nn.Module], float]
"""What a benchmark makes of a model, such as its accuracy on multiple-choice questions."""


@dataclass(frozen=True)
class Options:
    """How it is measured."""

    positions: str = "all"
    """Of which tokens the angular distance is the mean: "all", or the "last" of each sequence."""
    seed: int = 0
    """What the random vectors of the Jacobian depend on."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Benchmarks that layer removal measures besides the loss, by name."""


DEFAULT = Options()
FOLDER = "layers"
"""Of the artifacts of a run: where its measurements are."""
TRAINING, MEASURED = "training.json", "measured.json"
"""What the callback of training, and `ablate diagnose`, leave there."""


@dataclass(frozen=True)
class Result:
    """The numbers of one measurement on one model."""

    rows: list[dict[str, float]]
    """One for each layer (from 1), or for each pair of layers."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the rows are of: tokens, the loss of the whole model, and so on."""

    def column(self, name: str) -> list[float]:
        """The values of one name, in the order of the rows; NaN where a row has none."""
        return [row.get(name, float("nan")) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a number that is not finite is null."""
        return {"rows": [{key: finite(value) for key, value in row.items()} for row in self.rows], "facts": self.facts}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Result:
        """What `to_dict` gave; NaN for null."""
        rows = [{key: known(value) for key, value in row.items()} for row in content["rows"]]
        return cls(rows, content["facts"])

    def has(self, name: str) -> bool:
        """Whether some row has it."""
        return any(name in row for row in self.rows)


def finite(value: float) -> float | None:
    """`value`, or None, which JSON has and NaN it has not."""
    return value if math.isfinite(value) else None


def known(value: float | None) -> float:
    """The number that `finite` gave; NaN for None."""
    return math.nan if value is None else value


class Measurement(ABC):
    """Takes one batch after another, keeps sums alone (`sums`, float64 on the CPU), and gives a `Result`.

    A subclass sets its `name`, says in `columns` which numbers of its rows are logged for each layer in training, what
    a batch costs in training steps (`cost`), and how results of several models are drawn together (`draw`).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """What it is, in a sentence that stands above a figure."""
    columns: ClassVar[Mapping[str, str]]
    """Column -> what it is, with its unit: the label of an axis."""
    needs_targets: ClassVar[bool] = False
    """Whether it needs the right answers."""

    def __init__(self, subject: Subject, options: Options = DEFAULT) -> None:
        self.subject, self.options = subject, options
        self.sums: dict[str, Tensor] = {}

    @abstractmethod
    def update(self, batch: Batch, number: int) -> None:
        """Adds a batch, the `number`-th from 0."""

    @abstractmethod
    def result(self) -> Result:
        """The numbers of all batches so far."""

    @classmethod
    @abstractmethod
    def cost(cls, layers: int) -> float:
        """What `update` takes, in training steps on the same batch: a forward pass is a third of one."""

    @classmethod
    @abstractmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        """Results of models by label, in one figure on one scale."""

    @classmethod
    def per_layer(cls, result: Result) -> dict[str, list[float]]:
        """Column -> its value for each layer."""
        return {name: result.column(name) for name in cls.columns if result.has(name)}

    def add(self, name: str, value: Tensor) -> None:
        """Adds to a sum."""
        value = value.detach().double().cpu()
        self.sums[name] = self.sums[name] + value if name in self.sums else value


M = TypeVar("M", bound=type[Measurement])
measurements: dict[str, type[Measurement]] = {}
"""By name, in the order in which they are measured."""


def register(cls: M) -> M:
    """Class decorator: adds a measurement under its name."""
    if cls.name in measurements:
        raise ValueError(f"measurement {cls.name!r} is already registered")
    measurements[cls.name] = cls
    return cls


def chosen(names: list[str]) -> list[type[Measurement]]:
    """The measurements of these names, in the order in which they are measured; of none: all. Raises AblateError."""
    for name in names:
        if name not in measurements:
            raise AblateError(
                f"unknown measurement {name!r}. Accepted: {', '.join(measurements)}.{did_you_mean(name, measurements)}"
            )
    return [cls for name, cls in measurements.items() if not names or name in names]
