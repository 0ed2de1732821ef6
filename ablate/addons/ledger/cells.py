"""The cells of a bundle: single runs that can be trained again from it alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.addons.ledger.schema import Bundle, Phase, PublishedSweep, Run
from ablate.config.errors import ConfigError
from ablate.experiment.trainer import HOW
from ablate.experiment.tree import Experiment
from ablate.sweeps.records import SweepRecord

CHEAP = 10
"""A cheap cell is drawn from so many of the cheapest, and all that are as cheap."""


@dataclass(frozen=True)
class Cell:
    """One run of a bundle."""

    record: SweepRecord
    """The sweep, restored."""
    arm: str
    phase: Phase
    run: Run
    params: dict[str, Any]
    """All that it was trained with, over the settings of its arm."""
    peers: tuple[Run, ...]
    """Runs of the same settings on other seeds."""
    facts: Mapping[str, str]
    """The surroundings in which it was trained."""

    @property
    def label(self) -> str:
        """Return its name."""
        shown = {path: value for path, value in self.params.items() if path != "seed"}
        settings = "".join(f" {path.rpartition('.')[2]}={value}" for path, value in shown.items())
        return f"{self.record.name}: {self.arm}{settings} seed {self.seed} ({self.phase})"

    @property
    def seed(self) -> Any:
        """Return its seed."""
        return self.params.get("seed", self.record.spec.base(self.arm).seed)

    def build_experiment(self, eager: bool = False) -> Experiment:
        """Return what it trains, on this machine: what says where a run is computed, logged and copied to is left out.
        With `eager` it is not compiled, else as it was. Raises ConfigError."""
        experiment = self.record.spec.at(self.arm, self.params)
        fields = type(experiment.trainer).model_fields
        changed = {name: fields[name].get_default() for name in (path.removeprefix("trainer.") for path in HOW)}
        if eager:
            changed["compile"] = False
        elif experiment.trainer.compile == "auto" and "ablate.compile" in self.facts:
            changed["compile"] = self.facts["ablate.compile"] == "true"
        return experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update=changed)})


def list_cells(bundle: Bundle, records: Iterable[SweepRecord]) -> list[Cell]:
    """Return the runs that came to a result at their end, those on fresh seeds of each sweep first."""
    cells = []
    for sweep, record in zip(bundle.sweeps, records, strict=True):
        ended = [
            cell
            for cell in _iterate(sweep, record, bundle.surroundings)
            if cell.run.status in ("completed", "diverged")
        ]
        cells += sorted(ended, key=lambda cell: cell.phase != "fresh")
    return cells


def _iterate(sweep: PublishedSweep, record: SweepRecord, surroundings: Sequence[Mapping[str, str]]) -> Iterator[Cell]:
    def build(arm: str, phase: Phase, runs: Sequence[Run], over: Mapping[str, Any]) -> Iterator[Cell]:
        for run in runs:
            peers = tuple(other for other in runs if other is not run) if phase != "search" else ()
            yield Cell(record, arm, phase, run, {**over, **run.params}, peers, surroundings[run.surroundings])

    for arm, one in sweep.arms.items():
        searched = {run.number: run.params for run in one.search}
        settled = record.settled(arm)
        tested = {} if record.spec.at_grid or settled is None else settled.params
        yield from build(arm, "fresh", one.fresh, tested)
        yield from build(arm, "search", one.search, {})
        for candidate in one.candidates:
            yield from build(arm, "selection", candidate.runs, searched[candidate.trial])
    for pair in sweep.crossed:
        yield from build(pair.loser, "crossed", pair.runs, pair.params)


def find_obstacle(cell: Cell) -> str:
    """Return why a run cannot be trained from the bundle alone; "" if it can."""
    try:
        experiment = cell.build_experiment()
    except ConfigError as error:
        return str(error)
    for name in ("warm_start", "align"):
        if getattr(experiment, name) is not None:
            return f"it starts from the weights of another run ({name}), which are not in the bundle"
    return ""


def shuffle_cells(cells: Sequence[Cell], count: int, cheapest: bool = False) -> list[Cell]:
    """Return the cells in the order in which `count` of them are to be trained: at random, so that nobody knows
    beforehand which they are, those on fresh seeds, which the verdict is from, before others. With `cheapest` only the
    cheapest ten, or `count` if that is more, and those that cost no more than they."""
    if cheapest and cells:
        costs = sorted(map(_measure_cost, cells))
        most = costs[min(max(CHEAP, count), len(costs)) - 1]
        cells = [cell for cell in cells if _measure_cost(cell) <= most]
    drawn = random.SystemRandom().sample(cells, len(cells))
    return sorted(drawn, key=lambda cell: cell.phase != "fresh")


def _measure_cost(cell: Cell) -> float:
    return cell.run.costs.get("flops_per_update", 1.0) * cell.run.step
