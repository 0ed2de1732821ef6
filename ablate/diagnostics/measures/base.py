"""The interface of a measurement: one class that processes batches, returns rows of numbers, and draws them."""

from __future__ import annotations

import json
import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from ablate import tracking
from ablate.config.errors import AblateError, did_you_mean
from ablate.config.registry import Catalogue
from ablate.diagnostics.measures.subject import Batch, Subject
from ablate.norms.placement import STREAM, Placement

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ablate.plots.figure import Figure

Metric: TypeAlias = "Callable[[nn.Module], float]"
"""A benchmark: the score of a model, such as its accuracy on multiple-choice questions."""


@dataclass(frozen=True)
class Options:
    """Settings of measurements."""

    positions: str = "all"
    """The tokens over which the angular distance is averaged: "all", or the "last" of each sequence."""
    seed: int = 0
    """Seed of the random vectors of the Jacobian."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """Benchmarks that layer removal measures in addition to the loss, by name."""
    metrics_identity: str | None = ""
    """Equal for two sets of benchmarks only if their scores would be equal; None: unknown."""


DEFAULT = Options()
FOLDER = "layers"
"""The folder of measurements among the artifacts of a run."""
TRAINING, MEASURED = "training.json", "measured.json"
"""The files in this folder, written by the training callback and by `ablate diagnose`."""


@dataclass(frozen=True)
class Result:
    """The numbers of one measurement on one model."""

    rows: list[dict[str, float]]
    """One for each layer (from 1), or for each pair of layers."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Numbers of the whole measurement: its tokens, the loss of the whole model, and so on."""

    def column(self, name: str) -> list[float]:
        """Return the values of one column, in the order of the rows; NaN for a row without one."""
        return [row.get(name, float("nan")) for row in self.rows]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is null."""
        return {
            "rows": [{key: to_json_number(value) for key, value in row.items()} for row in self.rows],
            "facts": self.facts,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Result:
        """Return the result that `to_dict` wrote; NaN for null."""
        rows = [{key: parse_number(value) for key, value in row.items()} for row in content["rows"]]
        return cls(rows, content["facts"])

    def has(self, name: str) -> bool:
        """Return whether some row has the column."""
        return any(name in row for row in self.rows)


def to_json_number(value: float) -> float | None:
    """Return `value`, or None if it is not finite: JSON has no NaN."""
    return value if math.isfinite(value) else None


def parse_number(value: float | None) -> float:
    """Return the number that `to_json_number` was given; NaN for None."""
    return math.nan if value is None else value


class Measurement(ABC):
    """Processes one batch after another, keeps only sums (`sums`, float64 on the CPU), and returns a `Result`. A
    subclass sets its `name` and, in `columns`, the numbers of its rows that are logged for each layer in training; it
    defines the cost of a batch in training steps (`cost`), and how results of several models are drawn together
    (`draw`).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    """The title of its figure."""
    columns: ClassVar[Mapping[str, str]]
    """Column -> its description with its unit: the label of an axis."""
    needs_targets: ClassVar[bool] = False
    """Whether it needs the targets."""
    needs_same_shape: ClassVar[bool] = False
    """Whether it needs layers that return a hidden state of the shape of their input."""
    carriers: ClassVar[Literal["any", "one", "several"]] = "any"
    """The streams between layers that it needs: one, several, or any number."""
    uses_scores: ClassVar[bool] = False
    """Whether its numbers depend on `Options.metrics`."""
    is_positive: ClassVar[bool] = False
    """Whether its numbers are positive magnitudes, which are compared by their ratio."""
    during_training: ClassVar[bool] = True
    """Whether it can be taken during training; one that costs many updates cannot."""

    def __init__(self, subject: Subject, options: Options = DEFAULT) -> None:
        self.subject, self.options = subject, options
        self.sums: dict[str, Tensor] = {}

    @classmethod
    def find_obstacle(cls, keeps_shape: bool, placement: Placement | None) -> str:
        """Return why it cannot be taken of layers in a `placement` (None: of another library) that keep the shape of
        the hidden state or do not; '' if it can be."""
        if cls.needs_same_shape and not keeps_shape:
            return "its layers change the shape of the hidden state"
        carrier = placement.carrier if placement else STREAM
        if cls.carriers == ("several" if carrier == STREAM else "one"):
            return f"its layers hand on {carrier}"
        return ""

    @abstractmethod
    def update(self, batch: Batch, number: int) -> None:
        """Add a batch, the `number`-th from 0."""

    @abstractmethod
    def result(self) -> Result:
        """Return the numbers of all batches so far."""

    @classmethod
    def cost(cls, layers: int) -> float:
        """Return the cost of `update` in training steps on the same batch: a forward pass is a third of one."""
        return 1.0

    @classmethod
    @abstractmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        """Draw the results of models, by label, in one figure on one scale."""

    @classmethod
    def describe_columns(cls, results: Iterable[Result]) -> Mapping[str, str]:
        """Return the columns that results may have -> their descriptions."""
        return cls.columns

    @classmethod
    def per_layer(cls, result: Result) -> dict[str, list[float]]:
        """Return column -> its value for each layer."""
        return {name: result.column(name) for name in cls.describe_columns([result]) if result.has(name)}

    def add(self, name: str, value: Tensor) -> None:
        """Add to a sum."""
        value = value.detach().double().cpu()
        self.sums[name] = self.sums[name] + value if name in self.sums else value


measurements: Catalogue[type[Measurement]] = Catalogue("measurement")
"""In the order in which they are taken."""
register = measurements.register


def select(names: list[str], others: Sequence[str] = ()) -> list[type[Measurement]]:
    """Return the measurements of these names, in the order in which they are taken; without names, all of them. Those
    of `others`, which are none of these, are accepted too. Raises AblateError."""
    known = [*measurements, *others]
    for name in names:
        if name not in known:
            raise AblateError(f"unknown measurement {name!r}. Accepted: {', '.join(known)}.{did_you_mean(name, known)}")
    return [cls for name, cls in measurements.items() if not names or name in names]


THIRDS = ("first third", "middle", "last third")


def average_thirds(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the means of three parts of nearly equal length. Where the layers are no multiple of three, neighbouring
    parts share a layer."""
    n = len(values)
    cuts = [(0, math.ceil(n / 3)), (n // 3, math.ceil(2 * n / 3)), (n - math.ceil(n / 3), n)]
    first, middle, last = (math.fsum(values[low:high]) / (high - low) for low, high in cuts)
    return first, middle, last


def read_measurements(run_id: str, files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the contents of those of `files`, `TRAINING` and `MEASURED`, that the run has. Raises MlflowException."""
    client = tracking.client()
    there = {Path(item.path).name for item in client.list_artifacts(run_id, FOLDER)}
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            if name in there:
                file = Path(client.download_artifacts(run_id, f"{FOLDER}/{name}", folder))
                yield json.loads(file.read_text(encoding="utf-8"))


def parse_history(content: Mapping[str, Any], column: str) -> dict[int, list[float]]:
    """Return tokens or images seen -> the number `column` of each layer, from the content of `TRAINING`."""
    course = content["history"].get(column, {})
    return {int(at): [parse_number(value) for value in row] for at, row in course.items()}
