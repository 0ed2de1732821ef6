"""Best settings at an end of the searched range: a better one may lie beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ablate.config.formatting import format_setting, is_number, join_words
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import CHOOSING, EXTENSION, FINISHED


@dataclass(frozen=True)
class Edge:
    """An end of a searched range at which the best settings of an arm lie."""

    path: str
    end: str
    """lower or upper."""
    low: float
    """The lowest value that was tried."""
    high: float
    """The highest."""


def find_extent(record: SweepRecord, arm: str, path: str) -> tuple[int, int]:
    """Return by how many steps the range of a parameter was extended for `arm`: below its lower end, and above its
    upper one."""
    places = _list_places(record, arm, path, (EXTENSION,))
    low, high = min(places, default=0.0), max(places, default=0.0)
    return max(0, round(-low)), max(0, round(high - record.spec.axes(arm)[path].length))


def find_end(record: SweepRecord, arm: str, path: str, value: float) -> str:
    """Return the end of its range, as far as it was extended, at which a value of a parameter of `arm` lies: lower,
    upper or ''."""
    axis, tried = record.spec.axes(arm)[path], _list_places(record, arm, path, CHOOSING)
    return axis.find_end(axis.place(value), tried, *find_extent(record, arm, path))


def _list_places(record: SweepRecord, arm: str, path: str, stages: tuple[str, ...]) -> list[float]:
    """Return the places of a parameter on its axis at which `arm` was run in certain stages."""
    axis, runs = record.spec.axes(arm)[path], record.runs.select(arm, stages, status=FINISHED)
    return [axis.place(run.params[path]) for run in runs if is_number(run.params.get(path))]


def find_edges(record: SweepRecord, arm: str) -> list[Edge]:
    """Return the ends of its ranges, as far as they were extended, at which the best settings of `arm` lie, except if
    no value beyond one is accepted (an alpha of 0 or 1), or for a list of two values."""
    settled = record.settled(arm)
    params = settled.params if settled else {}
    edges = []
    for path, axis in record.spec.axes(arm).items():
        if not is_number(value := params.get(path)):
            continue
        if end := find_end(record, arm, path, value):
            before, beyond = find_extent(record, arm, path)
            edges.append(Edge(path, end, axis.value(-before), axis.value(axis.length + beyond)))
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
            f"({format_setting(edge.low)} to {format_setting(edge.high)}): a better value may lie beyond it."
        )
