"""Training a cell of a bundle again, as an experiment here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ablate.addons.ledger.cells import Cell
from ablate.experiment.metrics import read_metric
from ablate.parallel.compiling import has_compiler
from ablate.tracking.provenance import COMPARED
from ablate.training.procedures import Hooks, Place, Result
from ablate.training.runs import discard_checkpoint
from ablate.training.train import train


@dataclass(frozen=True)
class Trained:
    """A cell as it came out here."""

    status: str
    """completed or diverged."""
    value: float | None
    """The objective."""
    curve: dict[int, float]
    """Updates -> objective, at each validation."""
    metrics: dict[str, float]
    facts: dict[str, str]
    """Hardware, versions, corpus."""


def train_cell(cell: Cell, eager: bool = False) -> Trained:
    """Train a cell, as a run of the MLflow experiment "verify NAME", with as many threads as it had. With `eager`, and
    where there is no C++ compiler, it is not compiled, which changes its numbers by rounding. Raises AblateError where
    it cannot be trained here, and KeyboardInterrupt."""
    metric, curve = cell.record.spec.objective.metric, {}
    experiment = cell.build_experiment(eager=eager or not has_compiler())

    def note(step: int, metrics: Mapping[str, float]) -> bool:
        if (value := read_metric(metrics, metric)) is not None:
            curve[step] = value
        return True

    with _limit_threads(cell.run.facts.get("ablate.threads")):
        place = Place(f"verify {cell.record.name}", cell.label)
        result = train(experiment, place, Hooks(decide=note))
    if result.run_id:
        discard_checkpoint(result.run_id)
    if result.status == "interrupted":
        raise KeyboardInterrupt
    return _read_result(result, metric, curve)


@contextmanager
def _limit_threads(count: str | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(int(count) if count and count.isdigit() else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _read_result(result: Result, metric: str, curve: dict[int, float]) -> Trained:
    value = read_metric(result.metrics, metric) if result.status == "completed" else None
    if value is not None:
        curve[result.step] = value
    facts = {key: str(result.facts[key]) for key in COMPARED if key in result.facts}
    return Trained(result.status, value, curve, result.metrics, facts)
