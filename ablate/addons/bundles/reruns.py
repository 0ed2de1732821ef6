"""Single runs of a bundle that are trained again from it alone, as experiments here."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ablate.config.errors import ConfigError
from ablate.experiment.metrics import read_metric
from ablate.experiment.trainer import HOW
from ablate.experiment.tree import Experiment, require_own
from ablate.parallel.compiling import has_compiler
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, SEARCH, Run, Runs
from ablate.tracking.provenance import COMPARED
from ablate.training.procedures import Hooks, Place, Result
from ablate.training.runs import discard_checkpoint
from ablate.training.train import train

CHEAP = 10
"""A cheap run is drawn from so many of the cheapest, and all that are as cheap."""


@dataclass(frozen=True)
class Rerun:
    """One run of a bundle, to be trained again."""

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
        those = runs.select(run.arm, run.stage, number=run.number)
        return runs.replace(other for other in those if other is not run)

    @property
    def label(self) -> str:
        """Its name."""
        settings = "".join(f" {path.rpartition('.')[2]}={value}" for path, value in self.run.params.items())
        return f"{self.record.name}: {self.arm}{settings} seed {self.seed} ({self.run.stage})"

    def build_experiment(self, eager: bool = False) -> Experiment:
        """Return the experiment that it trains, on this machine: settings of where a run is computed, logged and copied
        are left out. With `eager` it is not compiled, else as it was. Raises ConfigError."""
        experiment = require_own(self.record.spec.at(self.arm, self.params))
        fields = type(experiment.trainer).model_fields
        changed = {name: fields[name].get_default() for name in (path.split(".")[1] for path in HOW)}
        if eager:
            changed["compile"] = False
        elif experiment.trainer.compile == "auto" and "ablate.compile" in self.run.facts:
            changed["compile"] = self.run.facts["ablate.compile"] == "true"
        return experiment.model_copy(update={"trainer": experiment.trainer.model_copy(update=changed)})


def list_reruns(records: Iterable[SweepRecord]) -> list[Rerun]:
    """Return the runs that came to a result at their end, those on fresh seeds of each sweep first."""
    reruns = []
    for record in records:
        ended = record.runs.select(status=("completed", "diverged"))
        reruns += [Rerun(record, run) for run in sorted(ended, key=lambda run: run.stage != FRESH)]
    return reruns


def find_obstacle(rerun: Rerun) -> str:
    """Return why a run cannot be trained from the bundle alone; "" if it can."""
    try:
        experiment = rerun.build_experiment()
    except ConfigError as error:
        return str(error)
    for name in ("warm_start", "align"):
        if getattr(experiment, name) is not None:
            return f"it starts from the weights of another run ({name}), which are not in the bundle"
    return ""


def shuffle_reruns(reruns: Sequence[Rerun], count: int, cheapest: bool = False) -> list[Rerun]:
    """Return the runs in the order in which `count` of them are to be trained: at random, so that nobody knows
    beforehand which they are, those on fresh seeds, which the verdict is from, before others. With `cheapest` only the
    cheapest ten, or `count` if that is more, and those that cost no more than they."""
    if cheapest and reruns:
        costs = sorted(map(_measure_cost, reruns))
        most = costs[min(max(CHEAP, count), len(costs)) - 1]
        reruns = [rerun for rerun in reruns if _measure_cost(rerun) <= most]
    drawn = random.SystemRandom().sample(reruns, len(reruns))
    return sorted(drawn, key=lambda rerun: rerun.run.stage != FRESH)


def _measure_cost(rerun: Rerun) -> float:
    return rerun.run.costs.get("flops_per_update", 1.0) * rerun.run.step


@dataclass(frozen=True)
class Trained:
    """The result of a run that was trained again here."""

    status: str
    """completed or diverged."""
    value: float | None
    """The objective."""
    curve: dict[int, float]
    """Updates -> objective, at each validation."""
    metrics: dict[str, float]
    facts: dict[str, str]
    """Hardware, versions, corpus."""


def train_again(rerun: Rerun, eager: bool = False) -> Trained:
    """Train a run again, in the MLflow experiment "verify NAME", with as many threads as it had. With `eager`, and
    where there is no C++ compiler, it is not compiled, which changes its numbers by rounding. Raises AblateError where
    it cannot be trained here, and KeyboardInterrupt."""
    metric, curve = rerun.record.spec.objective.metric, {}
    experiment = rerun.build_experiment(eager=eager or not has_compiler())

    def note(step: int, metrics: Mapping[str, float]) -> bool:
        if (value := read_metric(metrics, metric)) is not None:
            curve[step] = value
        return True

    with _limit_threads(rerun.run.facts.get("ablate.threads")):
        place = Place(f"verify {rerun.record.name}", rerun.label)
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
