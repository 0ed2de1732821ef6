"""The cells of a bundle: single runs that can be trained again from it alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.config.errors import ConfigError
from ablate.experiment.trainer import HOW
from ablate.experiment.tree import Experiment
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, SEARCH, Run, Runs

CHEAP = 10
"""A cheap cell is drawn from so many of the cheapest, and all that are as cheap."""


@dataclass(frozen=True)
class Cell:
    """One run of a bundle."""

    record: SweepRecord
    """The sweep, restored."""
    run: Run

    @property
    def arm(self) -> str:
        """Its arm."""
        return self.run.arm

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.run.seed

    @property
    def params(self) -> dict[str, Any]:
        """All that it was trained with, over the settings of its arm."""
        return {**self.run.params, "seed": self.run.seed}

    @property
    def peers(self) -> Runs:
        """Runs of the same settings on other seeds."""
        run, runs = self.run, self.record.runs
        if run.stage == SEARCH:
            return runs.replace(())
        those = runs.select(run.arm, run.stage, number=run.number, at=run.at)
        return runs.replace(other for other in those if other is not run)

    @property
    def label(self) -> str:
        """Its name."""
        settings = "".join(f" {path.rpartition('.')[2]}={value}" for path, value in self.run.params.items())
        return f"{self.record.name}: {self.arm}{settings} seed {self.seed} ({self.run.stage})"

    def build_experiment(self, eager: bool = False) -> Experiment:
        """Return what it trains, on this machine: what says where a run is computed, logged and copied to is left out.
        With `eager` it is not compiled, else as it was. Raises ConfigError."""
        experiment = self.record.spec.at(self.arm, self.params)
        fields = type(experiment.trainer).model_fields
        changed = {name: fields[name].get_default() for name in (path.removeprefix("trainer.") for path in HOW)}
        if eager:
            changed["compile"] = False
        elif experiment.trainer.compile == "auto" and "ablate.compile" in self.run.facts:
            changed["compile"] = self.run.facts["ablate.compile"] == "true"
        return experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update=changed)})


def list_cells(records: Iterable[SweepRecord]) -> list[Cell]:
    """Return the runs that came to a result at their end, those on fresh seeds of each sweep first."""
    cells = []
    for record in records:
        ended = record.runs.select(status=("completed", "diverged"))
        cells += [Cell(record, run) for run in sorted(ended, key=lambda run: run.stage != FRESH)]
    return cells


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
    return sorted(drawn, key=lambda cell: cell.run.stage != FRESH)


def _measure_cost(cell: Cell) -> float:
    return cell.run.costs.get("flops_per_update", 1.0) * cell.run.step
