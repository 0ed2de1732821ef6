"""The GPUs and hours that a sweep will need: the estimate of one run, times the trials of every arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.config.yaml import read_yaml
from ablate.estimate.plan import Assumed, Plan, plan
from ablate.experiment.tree import Experiment
from ablate.sweeps.seed_plan import count_crossed_runs, describe_power, describe_seeds
from ablate.sweeps.spec.sweep import Sweep


@dataclass(frozen=True)
class ArmCost:
    """The cost of an arm of a sweep: its trials, the choice among its candidates, and its fresh seeds."""

    arm: str
    plan: Plan
    trials: int | None
    """Maximum number of trials; None if only tokens or hours limit it."""
    selection: int
    """Maximum number of runs of its candidates."""
    seeds: int
    """Fresh seeds of the first look."""
    most_seeds: int
    """Fresh seeds of the last look."""
    tokens: int | None
    """Tokens or images at which the search of the arm ends."""
    hours: float | None
    """Hours after which it ends."""

    @property
    def items(self) -> float:
        """Maximum number of tokens or images, without pruning; a started trial is finished."""
        limits = [] if self.trials is None else [float(self.trials * self.plan.items)]
        if self.tokens is not None:
            limits.append(max(self.plan.items, self.tokens))
        if self.hours is not None:
            limits.append(max(self.plan.items, self.hours * 3600 * self.plan.items_per_second))
        return min(limits) + (self.selection + self.most_seeds) * self.plan.items

    @property
    def gpu_hours(self) -> float:
        """Hours of all devices together."""
        return self.plan.gpu_hours * self.items / self.plan.items


@dataclass(frozen=True)
class SweepPlan:
    """The cost of a whole sweep."""

    name: str
    arms: tuple[ArmCost, ...]
    crossed: int = 0
    """Maximum number of crossed runs, whose arms are not known yet."""
    power: tuple[str, ...] = ()
    """Lines on the planned seeds and their statistical power."""

    @property
    def items(self) -> float:
        """Tokens or images of all arms."""
        return sum(arm.items for arm in self.arms)

    @property
    def gpu_hours(self) -> float:
        """Hours of all devices together."""
        return sum(arm.gpu_hours for arm in self.arms)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        arms = {
            cost.arm: {
                "trials": cost.trials, "selection": cost.selection, "confirmation": cost.seeds,
                "confirmation_at_most": cost.most_seeds, cost.plan.unit: cost.items,
                "gpu_hours": cost.gpu_hours, "trial": cost.plan.to_dict(),
            }
            for cost in self.arms
        }  # fmt: skip
        unit = self.arms[0].plan.unit
        return {
            "sweep": self.name, unit: self.items, "gpu_hours": self.gpu_hours, "arms": arms,
            "crossed_at_most": self.crossed, "power": list(self.power),
        }  # fmt: skip


def plan_sweep(spec: Sweep, assumed: Assumed) -> SweepPlan:
    """Return the plan of a whole sweep, each arm at the first values of its search space."""
    arms = [
        ArmCost(
            arm=arm,
            plan=plan(spec.base(arm), assumed),
            trials=spec.trials(arm),
            selection=spec.count_selection_runs(arm),
            seeds=spec.confirm.first_seeds,
            most_seeds=spec.confirm.most_seeds,
            tokens=spec.budget.tokens,
            hours=spec.budget.hours,
        )
        for arm in spec.all_arms
    ]
    lines = [*describe_seeds(spec), *describe_power(spec, sum(arm.plan.gpu_hours for arm in arms))]
    return SweepPlan(spec.name, tuple(arms), count_crossed_runs(spec), tuple(lines))


def plan_file(
    file: str | Path | None, overrides: Mapping[str, Any], assumed: Assumed, size: str | None = None
) -> Plan | SweepPlan:
    """Return the plan of an experiment's file (None: the defaults) or of a sweep file, of its size or stage `size` if
    it has several, with `overrides`."""
    tree = {} if file is None else read_yaml(Path(file))
    if {"arms", "search", "experiment", "name"} & set(tree):
        assert file is not None
        return plan_sweep(Sweep.load(file, overrides, size), assumed)
    source = str(file) if file else "the configuration"
    return plan(Experiment.from_mapping(tree, overrides, source=source), assumed)
