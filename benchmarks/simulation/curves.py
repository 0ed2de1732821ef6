"""Whole sweeps with curves of known truth in the place of training: the stages of the engine say which runs they want,
and what they conclude is compared with what is true."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run, Runs
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import LOOKS, Wanted, find_step
from ablate.verdict.looks import Looks

from .losses import draw_normal, draw_uniform

STEPS, ITEMS = 120, 10  # updates of a run, and tokens of each
SHAPES: dict[str, Callable[[float], float]] = {
    "power": lambda share: 2 + 0.34 * max(share, 1e-3) ** -0.5,
    "flat at the end": lambda share: 2 + 1.5 * math.exp(-6 * share),
}
"""Name -> the expected loss after a share of the updates of the baseline."""


@dataclass(frozen=True)
class Curves:
    """Losses of arms at their validations, with a part of the noise that all arms of a seed share, one of each run, and
    one of each validation."""

    shape: str = "power"
    speeds: tuple[float, ...] = (1.0,)
    """Of each arm after the baseline: the factor by which it needs fewer updates."""
    shared: float = 0.02
    own: float = 0.01
    each: float = 0.0
    """Standard deviation of each validation's own noise."""
    tails: bool = False
    """Whether the noise of a run is that of Student's t with three degrees of freedom, of the same deviation."""
    fails: float = 0.0
    """Probability that a run diverges."""
    validations: int = 12
    costs: tuple[float, ...] = (1.0,)
    """Of each arm after the baseline: FLOPs and seconds of an update, relative to the baseline's."""
    jitter: float = 0.0
    """Standard deviation of the logarithm of a run's seconds."""
    at_cost: bool = False
    """Whether a curve is that of its cost, relative to that of the baseline, instead of its updates: arms of the same
    speed are then equal at equal cost."""
    entropy: int = 0

    def find_speed(self, arm: str) -> tuple[float, float]:
        """Return the speed and the cost of an update of an arm, named armI."""
        number = int(arm.removeprefix("arm"))
        return (self.speeds[number - 1], self.costs[number - 1]) if number else (1.0, 1.0)

    def find_mean(self, arm: str, updates: float) -> float:
        """Return the expected loss of an arm after so many updates."""
        speed, cost = self.find_speed(arm)
        return SHAPES[self.shape](speed * (cost if self.at_cost else 1.0) * updates / STEPS)

    def train(self, spec: Sweep, wanted: Wanted) -> Run:
        """Return the run that is wanted, ended."""
        arm, seed = spec.find_arm(wanted.arm), wanted.seed or 0
        key = (self.entropy, seed, arm)
        own = draw_normal("own", *key)
        if self.tails:
            own /= math.sqrt(sum(draw_normal("tails", i, *key) ** 2 for i in range(3)))
        level = self.shared * draw_normal("shared", self.entropy, seed) + self.own * own
        steps = spec.own_base(wanted.arm).trainer.max_steps
        places = [steps * (k + 1) // self.validations for k in range(self.validations)]
        curve = {
            u: self.find_mean(arm, u) + level + self.each * draw_normal("each", u, *key) if self.each
            else self.find_mean(arm, u) + level for u in places
        }  # fmt: skip
        failed = draw_uniform("fails", *key)[0] < self.fails
        seconds = self.find_speed(arm)[1] * math.exp(self.jitter * draw_normal("seconds", *key))
        costs = {"flops_per_update": self.find_speed(arm)[1], "seconds_per_update": seconds, "company": 0}
        value = None if failed else curve[steps]
        metrics = {} if value is None else {"val/loss": value}
        status = "diverged" if failed else "completed"
        return Run(
            wanted.arm, wanted.number, status, wanted.params, value, metrics, {} if failed else curve, steps, 1.0, None,
            "", ITEMS, wanted.stage, seed, costs=costs,
        )  # fmt: skip


def build_spec(comparisons: int, confirm: dict[str, Any], **more: Any) -> Sweep:
    """Return a sweep of `comparisons` arms besides the baseline, each as it stands, without a search."""
    kinds: list[Any] = ["pre", *({"kind": "mix", "first_layers": i + 1} for i in range(comparisons))]
    tree = {
        "name": "simulated",
        "experiment": {"model.layers": 12, "trainer": {"max_steps": STEPS, "val_check_interval": STEPS // 12}},
        "arms": {f"arm{i}": {"norm": kind} for i, kind in enumerate(kinds)},
        "sampler": "grid",
        "confirm": {**confirm, "at": "grid"},
    }
    return Sweep.from_tree({**tree, **more})


def run_stages(spec: Sweep, curves: Curves) -> SweepRecord:
    """Return the record with which `spec` ends where its runs are those of `curves`."""
    record = SweepRecord(spec.name, 1, spec, Runs(), chosen=dict.fromkeys(spec.all_arms, 0))
    while True:
        step = find_step(record)
        if step.decisions:
            made = {one.arm: one.content for one in step.decisions if one.kind == LOOKS}
            looks = {arm: Looks(tuple(own["sizes"]), own["planned"]) for arm, own in made.items()}
            against = {arm: own["against"] for arm, own in made.items()}
            record = replace(record, looks={**record.looks, **looks}, against={**record.against, **against})
        elif wanted := [one for lane in step.lanes for one in lane.wanted]:
            rows = (*record.runs.rows, *(curves.train(spec, one) for one in wanted))
            record = replace(record, runs=Runs(rows))
        else:
            return record


def find_truth(curves: Curves, arm: str, goal: float) -> float:
    """Return the updates after which the expected curve of an arm, read between validations as reports do, comes to
    `goal`; infinite if it does not."""
    places = [STEPS * (k + 1) / curves.validations for k in range(curves.validations)]
    means = [curves.find_mean(arm, place) for place in places]
    if means[-1] > goal:
        return math.inf
    return float(np.interp(-goal, [-mean for mean in means], places))
