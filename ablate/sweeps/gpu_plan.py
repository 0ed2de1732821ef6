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
from ablate.sweeps.stages import Left, count_left


@dataclass(frozen=True)
class ArmCost:
    """The cost of an arm of a sweep, without pruning."""

    arm: str
    plan: Plan
    left: Left
    """Its runs."""

    @property
    def runs(self) -> tuple[float, float]:
        """The least and the most whole runs."""
        return self.left.whole, self.left.whole + self.left.more

    @property
    def items(self) -> float:
        """Maximum number of tokens or images."""
        return self.runs[1] * self.plan.work.items

    @property
    def gpu_hours(self) -> tuple[float, float]:
        """The least and the most hours of all devices together."""
        least, most = (runs * self.plan.work.gpu_hours for runs in self.runs)
        return least, most


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
    def gpu_hours(self) -> tuple[float, float]:
        """The least and the most hours of all devices together."""
        return sum(arm.gpu_hours[0] for arm in self.arms), sum(arm.gpu_hours[1] for arm in self.arms)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        arms = {
            cost.arm: {
                "trials": cost.left.search, "selection": cost.left.selection,
                "confirmation": cost.left.seeds, "confirmation_at_most": cost.left.seeds + cost.left.more,
                cost.plan.unit: cost.items, "gpu_hours_at_least": cost.gpu_hours[0], "gpu_hours": cost.gpu_hours[1],
                "trial": cost.plan.to_dict(),
            }
            for cost in self.arms
        }  # fmt: skip
        unit = self.arms[0].plan.unit
        return {
            "sweep": self.name, unit: self.items, "gpu_hours_at_least": self.gpu_hours[0],
            "gpu_hours": self.gpu_hours[1], "arms": arms, "crossed_at_most": self.crossed, "power": list(self.power),
        }  # fmt: skip


def plan_sweep(spec: Sweep, assumed: Assumed) -> SweepPlan:
    """Return the plan of a whole sweep, each arm at the first values of its search space."""
    plans = {arm: plan(spec.base(arm), assumed) for arm in spec.all_arms}
    left = count_left(spec)
    arms = tuple(ArmCost(arm, plans[arm], left[arm]) for arm in plans)
    lines = [*describe_seeds(spec), *describe_power(spec, sum(arm.plan.work.gpu_hours for arm in arms))]
    return SweepPlan(spec.name, arms, count_crossed_runs(spec), tuple(lines))


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
