"""Whether the best learning rate of each arm holds as the model grows: how it moves, and what the smallest size's rate
costs at the largest.

All arms are one family: the slope of the best rate and the cost of each share an error of 5 %, by Bonferroni. The cost
is that of choosing, not of a lucky minimum: for each seed both rates are chosen on the other seeds, and compared on
it. Without that the largest size's best rate would be chosen and judged by the same seeds, and every rate would seem to
cost something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.config.errors import SweepError
from ablate.scaling.ladder import find_effect, read_losses
from ablate.scaling.transfer.optimum import Curve, Optimum, find_optimum, read_curves
from ablate.scaling.transfer.sizes import Chain
from ablate.sweeps.records import SweepRecord
from ablate.verdict.failures import compare_failures
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.sequential import LEAST

ERROR = 0.05
TESTS = 2
"""Of each arm: its slope and its cost."""


@dataclass(frozen=True)
class Cost:
    """What the smallest size's best rate costs at the largest, against the largest's own."""

    estimate: Estimate | None
    """Nats, over the seeds that trained at both rates, with an interval at the level of the family. Without an interval
    where all are equal; None where no seed trained at both."""
    same: bool
    """Whether both sizes have the same best rate whichever seed is left out: the cost is then exactly 0."""
    seeds: int
    failed: int
    """Seeds that failed at the smallest size's rate, at the largest size."""
    other_failed: int
    """Seeds that failed at the largest size's own rate."""
    fails_more: bool
    """Whether the smallest size's rate is shown to fail more often, by the exact sign test."""


@dataclass(frozen=True)
class ArmTransfer:
    """One arm at each size, the smallest first."""

    curves: list[dict[int, dict[float, float | None]]]
    """Of each size: seed -> learning rate -> loss; None: it failed."""
    optima: list[Optimum]
    """At each size, with a 95 % interval."""
    slope: Estimate | None
    """Base-2 logarithm of the best rate's factor for each doubling of the size, with an interval at the level of the
    family; None where some size has no best rate between the edges."""
    cost: Cost | None
    """None for fewer than three seeds that ended at every rate, and where there is nothing to choose."""
    word: str
    """holds, costs, fails more often, or undecided: of the smallest size's rate at the largest."""

    @property
    def moves(self) -> int:
        """1: the best rate is shown to rise with size; -1: to fall; 0: neither."""
        ends = self.slope.interval if self.slope else None
        return 0 if ends is None else (ends[0] > 0) - (ends[1] < 0)


@dataclass(frozen=True)
class Transfer:
    """The arms of a file over its sizes."""

    chain: Chain
    arms: dict[str, ArmTransfer]
    family: int
    """Intervals that share an error of 5 %."""
    effect: float | None
    """The smallest difference of the loss that matters; None: nothing is said to hold."""
    search_items: list[int]
    """Of each size, the tokens or images of searching its rates on one seed, for one arm."""

    @property
    def saved_items(self) -> int:
        """Tokens or images for each arm that a search at the smallest size alone leaves out."""
        return sum(self.search_items[1:])

    @property
    def saved_operations(self) -> float:
        """Share of the floating-point operations of all searches that are left out, counting those of the layers
        alone."""
        costs = [items * rung.parameters for items, rung in zip(self.search_items, self.chain.rungs, strict=True)]
        return sum(costs[1:]) / sum(costs)


def fit_transfer(chain: Chain, records: Sequence[SweepRecord]) -> Transfer:
    """Return what the runs of each size (`records`) show. Raises SweepError where no arm has seeds at two sizes."""
    curves: dict[str, list[dict[int, dict[float, float | None]]]] = {arm: [] for arm in chain.arms}
    for record in records:
        cells = record.spec.cells
        for arm in chain.arms:
            named = {name: cell for name, cell in cells.items() if cell.arm == arm}
            outcomes = {float(c.point[chain.path]): read_losses(record, name).outcomes for name, c in named.items()}  # type: ignore[arg-type]
            curves[arm].append(read_curves(dict(sorted(outcomes.items()))))
    if not any(sum(bool(seeds) for seeds in by_size) > 1 for by_size in curves.values()):
        raise SweepError(
            f"{chain.name} needs seeds that ended at every rate at two sizes. To see what failed: ablate status "
            f"{chain.rungs[0].spec.name}"
        )
    effect = find_effect(chain.rungs)
    items = [rung.items * len(chain.list_rates(k)) for k, rung in enumerate(chain.rungs)]
    return compare_transfer(chain, curves, effect, items)


def compare_transfer(
    chain: Chain,
    curves: Mapping[str, list[dict[int, dict[float, float | None]]]],
    effect: float | None,
    search_items: list[int],
) -> Transfer:
    """Return what `curves` show: arm -> for each size, seed -> learning rate -> loss, None where it failed."""
    family = TESTS * len(curves)
    arms = {arm: judge_arm(by_size, chain.places, ERROR / family, effect) for arm, by_size in curves.items()}
    return Transfer(chain, arms, family, effect, search_items)


def judge_arm(
    curves: list[dict[int, dict[float, float | None]]], places: Sequence[int], level: float, effect: float | None
) -> ArmTransfer:
    """Return what the curves of one arm show, its intervals of slope and cost at `level`.

    Args:
        curves: for each size, seed -> learning rate -> loss, None where it failed.
        places: the sizes: width, depth or parameters.
        effect: the smallest difference of the loss that matters.
    """
    optima = [find_optimum(by_seed) for by_seed in curves]
    cost = measure_cost(curves[0], curves[-1], level)
    edges = optima[0].at_edge > 0, optima[-1].at_edge > 0
    return ArmTransfer(curves, optima, _fit_slope(optima, places, level), cost, _find_word(cost, effect, edges))


def _fit_slope(optima: Sequence[Optimum], places: Sequence[int], level: float) -> Estimate | None:
    """Return the mean over the seeds of the slope of each seed's line through its best rates."""
    shared = set.intersection(*({*one.seeds} for one in optima))
    if len(shared) < LEAST or any(one.at_edge for one in optima) or any(len(one.seeds) > len(shared) for one in optima):
        return None
    x = [math.log2(place) for place in places]
    middle = math.fsum(x) / len(x)
    squares = math.fsum((v - middle) ** 2 for v in x)
    weights = [(v - middle) / squares for v in x]
    slopes = [
        math.fsum(w * one.seeds[seed].log_rate for w, one in zip(weights, optima, strict=True)) for seed in shared
    ]
    least = math.sqrt(math.fsum((w * one.least_sd) ** 2 for w, one in zip(weights, optima, strict=True)))
    return bound_mean(slopes, level, least, scale=1.0)


def choose_rate(curves: Mapping[int, Curve], without: int | None = None) -> float | None:
    """Return the rate of the grid at which the fewest seeds fail, and of these the one with the lowest mean loss; None
    where all fail at every rate. `without`: a seed that is left out."""
    kept = [curve for seed, curve in curves.items() if seed != without]
    ranks = []
    for rate in kept[0]:
        losses = [loss for curve in kept if (loss := curve[rate]) is not None]
        if losses:
            ranks.append((len(kept) - len(losses), math.fsum(losses) / len(losses), rate))
    return min(ranks)[2] if ranks else None


def measure_cost(small: Mapping[int, Curve], large: Mapping[int, Curve], level: float) -> Cost | None:
    """Return what the best rate of the curves `small` costs on the curves `large` (seed -> curve), each chosen without
    the seed on which they are compared. None for fewer than three seeds that both have, where the seeds of a size
    failed at every rate, and where the large size was not trained at the rate."""
    seeds = sorted({*small} & {*large})
    if len(seeds) < LEAST:
        return None
    differences, same = [], True
    failed, other_failed, alone, other_alone = 0, 0, 0, 0
    for seed in seeds:
        theirs, own = choose_rate(small, seed), choose_rate(large, seed)
        if theirs is None or own is None or theirs not in large[seed]:
            return None
        transferred, tuned = large[seed][theirs], large[seed][own]
        same = same and theirs == own
        failed += transferred is None
        other_failed += tuned is None
        alone += transferred is None and tuned is not None
        other_alone += tuned is None and transferred is not None
        if transferred is not None and tuned is not None:
            differences.append(transferred - tuned)
    estimate = bound_mean(differences, level, scale=1.0) if differences else None
    fails_more = alone > other_alone and compare_failures(alone, other_alone) <= level
    return Cost(estimate, same, len(seeds), failed, other_failed, fails_more)


def _find_word(cost: Cost | None, effect: float | None, edges: tuple[bool, bool]) -> str:
    """Return what is shown of the smallest size's rate at the largest. `edges`: whether some seed's best rate lies at
    an edge of the searched ones at the smallest size, so that the best rate is not known, and at the largest, where a
    better one may lie beyond."""
    if cost is None or edges[0]:
        return "undecided"
    if cost.fails_more:
        return "fails more often"
    if cost.failed > cost.other_failed:
        return "undecided"
    ends = cost.estimate.interval if cost.estimate else None
    if cost.same:
        return "holds" if effect is not None and not edges[1] else "undecided"
    if ends is None:
        return "undecided"
    if ends[0] > 0:
        return "costs"
    return "holds" if effect is not None and ends[1] < effect and not edges[1] else "undecided"
