"""Best settings at an end of the searched range: a better one may lie beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ablate.config.formatting import format_setting, is_number, join_words
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.search.space import Range
from ablate.sweeps.spec.validation import validate_experiment

_NEAR = 0.03  # of the length: this close to an end counts as at it


@dataclass(frozen=True)
class Span:
    """The searched numbers from `low` to `high`, on a logarithmic scale if `log`."""

    low: float
    high: float
    log: bool
    whole: bool

    @classmethod
    def of(cls, entry: Any) -> Span | None:
        """Return the span of the numbers of an entry of a search, ignoring a null among them; None if it has other
        values, or is a list of one or two."""
        numbers = entry.ends() if isinstance(entry, Range) else [value for value in entry if value is not None]
        values = [value for value in numbers if is_number(value)]
        if len(values) < len(numbers) or len(set(values)) < (2 if isinstance(entry, Range) else 3):
            return None
        low, high = min(values), max(values)
        log = entry.log if isinstance(entry, Range) else low > 0 and high / low >= 10
        return cls(low, high, log, all(isinstance(value, int) for value in values))

    def find_end(self, value: float) -> str:
        """Return the end that `value` is at: 'lower', 'upper' or ''."""
        if self.log:
            margin = (self.high / self.low) ** _NEAR
            low, high = self.low * margin, self.high / margin
        else:
            low, high = (self.low + _NEAR * (self.high - self.low), self.high - _NEAR * (self.high - self.low))
        return "lower" if value <= low else "upper" if value >= high else ""

    def step_beyond(self, end: str) -> float:
        """Return a value slightly outside the span."""
        if self.log:
            value = self.low / 1.1 if end == "lower" else self.high * 1.1
        else:
            step = 0.01 * (self.high - self.low)
            value = self.low - step if end == "lower" else self.high + step
        return (int(self.low) - 1 if end == "lower" else int(self.high) + 1) if self.whole else value


@dataclass(frozen=True)
class Edge:
    """An end of a searched range at which the best setting of an arm lies."""

    path: str
    end: str
    """lower or upper."""
    span: Span


def find_edges(record: SweepRecord, arm: str) -> list[Edge]:
    """Return the ends of its ranges at which the best settings of `arm` lie, except if the configuration accepts no
    value beyond one (an alpha of 0 or 1), or for a list of two values."""
    if (settled := record.settled(arm)) is None:
        return []
    edges, settings = [], record.spec.all_arms[arm].settings
    for path, entry in record.spec.space(arm).items():
        span, value = Span.of(entry), settled.params.get(path)
        end = span.find_end(value) if span and is_number(value) else ""
        if span and end and not validate_experiment(record.spec.experiment, settings, {path: span.step_beyond(end)}):
            edges.append(Edge(path, end, span))
    return edges


def name_edges(record: SweepRecord, arm: str) -> str:
    """Return the ends at which the best settings of `arm` lie: 'at the upper end of its range of optimizer.lr'; '' for
    none."""
    return join_words(f"at the {edge.end} end of its range of {edge.path}" for edge in find_edges(record, arm))


def describe_edges(record: SweepRecord) -> Iterator[str]:
    """Yield a sentence for each parameter and end of its range at which the best settings of arms lie."""
    arms_at: dict[Edge, list[str]] = {}
    for arm in record.arms:
        for edge in find_edges(record, arm):
            arms_at.setdefault(edge, []).append(arm)
    for edge, arms in arms_at.items():
        yield (
            f"The best {edge.path} of {join_words(arms)} is at the {edge.end} end of the searched range "
            f"({format_setting(edge.span.low)} to {format_setting(edge.span.high)}): a better value may lie beyond it."
        )
