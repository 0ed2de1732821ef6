"""What the layers of each arm do at the end of training, over its fresh seeds: of sweeps with `trainer.diagnose`.

Numbers are means over thirds of the depth. Compared are, for each number, the last third of an arm with its own middle,
and with the last third of the baseline, in pairs of seeds: all of them share an error of 5 %, apart from that of the
verdict. Seeds that failed are left out, so that all of this is about models that trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ablate.diagnostics.measures import measurements
from ablate.diagnostics.thirds import average_thirds
from ablate.sweeps.records import SweepRecord
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.looks import find_lowest_level
from ablate.verdict.sequential import LEAST

Rows = Mapping[int, Sequence[float]]
"""Seed -> a number of each layer."""


@dataclass(frozen=True)
class LayerNumber:
    """One number of the layers of one arm."""

    seeds: dict[int, list[float]]
    """Seed that trained -> its value for each layer."""
    thirds: list[Estimate]
    """The means over the first third of the depth, the middle and the last, each with its 95 % interval over seeds."""


@dataclass(frozen=True)
class LayerDifference:
    """The difference of two means over a third of the depth, in pairs of seeds."""

    arm: str
    column: str
    against: str
    """What is subtracted: "its middle", or an arm, of which the last third."""
    is_ratio: bool
    """Whether it is that of the natural logarithms."""
    estimate: Estimate | None
    """With an interval at the level of all differences; None for fewer than three pairs, or values without a
    logarithm."""

    @property
    def word(self) -> str:
        """higher, lower, or not shown."""
        return {1: "higher", -1: "lower", 0: "not shown"}[self.estimate.sign if self.estimate else 0]


@dataclass(frozen=True)
class LayersOverSeeds:
    """What the layers of all arms do."""

    numbers: dict[str, dict[str, LayerNumber]]
    """Column -> arm -> its numbers."""
    differences: list[LayerDifference]
    """They share an error of 5 %."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, each difference with its word."""
        return {**asdict(self), "differences": [{**asdict(one), "word": one.word} for one in self.differences]}


def describe_column(column: str) -> str:
    """Return what a number is, with its unit."""
    return next((m.columns[column] for m in measurements.values() if column in m.columns), column.replace("_", " "))


def compare_layers(record: SweepRecord) -> LayersOverSeeds | None:
    """Return what the layers of the fresh seeds do; None where nothing was measured of them."""
    rows: dict[str, dict[str, dict[int, list[float]]]] = {}
    for arm in record.arms:
        for run in record.fresh(arm):
            outcome = record.runs.find_outcome(run)
            if outcome is None or not outcome.trained:
                continue
            for column, values in run.layers.items():
                if all(value is not None for value in values):
                    by_arm = rows.setdefault(column, {})
                    by_arm.setdefault(arm, {})[run.seed] = [v for v in values if v is not None]
    if not rows:
        return None
    ratios = {column for kind in measurements.values() if kind.is_positive for column in kind.columns}
    pairs = [
        (column, arm, against)
        for column, by_arm in rows.items()
        for arm in by_arm
        for against in (None, record.spec.baselines[arm])
        if against is None or (against != arm and against in by_arm)
    ]
    level = find_lowest_level(record.looks.values(), ALPHA / max(1, len(pairs)))
    numbers = {
        column: {arm: LayerNumber(dict(sorted(seeds.items())), _bound_thirds(seeds)) for arm, seeds in by_arm.items()}
        for column, by_arm in rows.items()
    }
    differences = [
        LayerDifference(
            arm,
            column,
            against or "its middle",
            column in ratios,
            _bound_difference(_list_pairs(rows[column], arm, against), column in ratios, level),
        )
        for column, arm, against in pairs
    ]
    return LayersOverSeeds(numbers, differences)


def _bound_thirds(seeds: Rows) -> list[Estimate]:
    means = [average_thirds(values) for values in seeds.values()]
    return [bound_mean(column, ALPHA, scale=1.0) for column in zip(*means, strict=True)]


def _list_pairs(rows: Mapping[str, Rows], arm: str, against: str | None) -> list[tuple[float, float]]:
    """Return, for each seed, the mean over the last third and what is subtracted from it."""
    own = {seed: average_thirds(values) for seed, values in rows[arm].items()}
    if against is None:
        return [(last, middle) for _, middle, last in own.values()]
    others = {seed: average_thirds(values) for seed, values in rows[against].items()}
    return [(own[seed][2], others[seed][2]) for seed in own if seed in others]


def _bound_difference(pairs: Sequence[tuple[float, float]], is_ratio: bool, level: float) -> Estimate | None:
    if len(pairs) < LEAST or (is_ratio and min(map(min, pairs)) <= 0):
        return None
    change = math.log if is_ratio else float
    return bound_mean([change(one) - change(other) for one, other in pairs], level, scale=1.0)
