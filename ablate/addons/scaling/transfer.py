"""Whether the best learning rate of each arm holds as the model grows: how it moves, and what the smallest size's rate
costs at the largest.

All arms are one family: the slope of the best rate and the cost of each share an error of 5 %, together with the tests
of failures that could reach such a level, and every look at the seeds counts. The cost is that of choosing, not of a
lucky minimum: for each seed both rates are chosen on the other seeds, and compared on it. Without that the largest
size's best rate would be chosen and judged by the same seeds, and every rate would seem to cost something.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ablate.addons.scaling.ladder import find_effect, read_losses
from ablate.addons.scaling.optimum import Curves, Optimum, find_optimum, find_step, read_curves
from ablate.addons.scaling.sizes import Chain
from ablate.config.errors import SweepError
from ablate.reports.fairness import describe_sizes
from ablate.sweeps.records import SweepRecord
from ablate.verdict.failures import ALPHA, compare_failures, count_family
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.looks import Looks, find_lowest_level
from ablate.verdict.sequential import LEAST

INTERVALS = 2
"""Intervals of each arm: its slope and its cost."""


@dataclass(frozen=True)
class Rates:
    """The largest size trained at the smallest size's best rate and at its own, each chosen without the seed on which
    they are compared."""

    differences: tuple[float, ...]
    """The loss at the first less that at the second, of the seeds that trained at both."""
    same: bool
    """Whether the two are equal whichever seed is left out."""
    seeds: int
    failed: int
    """Seeds that failed at the first."""
    other_failed: int
    """Seeds that failed at the second."""
    alone: int
    """Seeds that failed at the first only."""
    other_alone: int
    """Seeds that failed at the second only."""


@dataclass(frozen=True)
class Cost:
    """The cost of the smallest size's best rate at the largest size, against the largest's own."""

    rates: Rates
    estimate: Estimate | None
    """Nats, with an interval at the level of the family; without one where all differences are equal; None where no
    seed trained at both rates."""
    fails_more: bool
    """Whether the smallest size's rate is shown to fail more often, by the exact sign test."""


@dataclass(frozen=True)
class ArmTransfer:
    """One arm at each size, the smallest first."""

    curves: list[Curves]
    """The curves of each size."""
    optima: list[Optimum]
    """At each size, with a 95 % interval."""
    slope: Estimate | None
    """Base-2 logarithm of the best rate's factor for each doubling of the size, with an interval at the level of the
    family; None for one size, and where some size has no best rate between the edges."""
    cost: Cost | None
    """None for one size, for fewer than three seeds that ended at every rate, and where there is nothing to choose."""
    word: str
    """The smallest size's rate at the largest holds, costs, fails more often, or is undecided."""
    resolution: float
    """Slope of a best rate that moves by half a step of the grid from the smallest size to the largest; 0 for one."""

    @property
    def moves(self) -> int:
        """1: the best rate is shown to rise with size by more than half a step of the grid; -1: to fall; 0: neither.
        The minimum of a parabola moves by less where a curve that is no parabola changes its form."""
        ends = self.slope.interval if self.slope else None
        return 0 if ends is None else (ends[0] > self.resolution) - (ends[1] < -self.resolution)


@dataclass(frozen=True)
class Transfer:
    """The arms of a file over its sizes."""

    chain: Chain
    arms: dict[str, ArmTransfer]
    family: int
    """Intervals and tests that share an error of 5 %; 0 for one size."""
    effect: float | None
    """The smallest difference of the loss that matters; None: nothing is said to hold."""
    search_items: list[int]
    """For each size, the tokens or images of searching its rates on one seed, for one arm."""
    surroundings: list[str]
    """Differences between the sizes in what they were computed on."""

    @property
    def saved_items(self) -> int:
        """Tokens or images for each arm that a search at the smallest size alone leaves out."""
        return sum(self.search_items[1:])

    @property
    def saved_operations(self) -> float:
        """Share of the floating-point operations of all searches that are left out, counting those of the layers
        alone."""
        costs = [items * size.parameters for items, size in zip(self.search_items, self.chain.sizes, strict=True)]
        return sum(costs[1:]) / sum(costs)


def fit_transfer(chain: Chain, records: Sequence[SweepRecord]) -> Transfer:
    """Return the results of the runs of each size (`records`). Raises SweepError if no arm has seeds at two sizes, or
    at the only one."""
    curves: dict[str, list[Curves]] = {arm: [] for arm in chain.arms}
    looks: dict[str, list[Looks]] = {arm: [] for arm in chain.arms}
    for record in records:
        for arm in chain.arms:
            outcomes = {}
            for name, cell in record.spec.cells.items():
                if cell.arm == arm:
                    fresh = read_losses(record, name)
                    outcomes[float(cell.point[chain.path])] = fresh.outcomes  # type: ignore[arg-type]
                    looks[arm] += [fresh.looks] if fresh.looks else []
            curves[arm].append(read_curves(dict(sorted(outcomes.items()))))
    several = len(chain.sizes) > 1
    if not any(sum(bool(seeds) for seeds in by_size) > several for by_size in curves.values()):
        raise SweepError(
            f"{chain.name} needs seeds that ended at every rate{' at two sizes' if several else ''}. To see what "
            f"failed: ablate status "
            f"{chain.sizes[0].spec.name}"
        )
    rates = {arm: compare_rates(by_size[0], by_size[-1]) if several else None for arm, by_size in curves.items()}
    tests = [one.alone + one.other_alone for one in rates.values() if one]
    family = count_family(INTERVALS * len(rates), tests) if several else 0
    effect = find_effect(chain.sizes)
    arms = {
        arm: judge_arm(by_size, rates[arm], chain.places, find_lowest_level(looks[arm], ALPHA / max(1, family)), effect)
        for arm, by_size in curves.items()
    }
    items = [size.items * len(chain.list_rates(k)) for k, size in enumerate(chain.sizes)]
    sizes = {size.name: record for size, record in zip(chain.sizes, records, strict=True)}
    return Transfer(chain, arms, family, effect, items, list(describe_sizes(sizes)))


def judge_arm(
    curves: list[Curves], rates: Rates | None, places: Sequence[int], level: float, effect: float | None
) -> ArmTransfer:
    """Return the results of the curves of one arm, with intervals of slope and cost at `level`.

    Args:
        curves: for each size.
        rates: the comparison of the smallest size's rate with the largest's (`compare_rates`).
        places: the sizes: width, depth or parameters. Of one alone nothing moves.
        level: of the intervals and of the test of failures.
        effect: the smallest difference of the loss that matters.
    """
    optima = [find_optimum(by_seed) for by_seed in curves]
    cost = bound_cost(rates, level) if rates else None
    edges = optima[0].at_edge > 0, optima[-1].at_edge > 0
    step = max((find_step(curve) for by_seed in curves for curve in by_seed.values()), default=0.0)
    resolution = step / 2 / math.log2(places[-1] / places[0]) if len(places) > 1 else 0.0
    word = _find_word(cost, effect, edges)
    return ArmTransfer(curves, optima, _fit_slope(optima, places, level), cost, word, resolution)


def _fit_slope(optima: Sequence[Optimum], places: Sequence[int], level: float) -> Estimate | None:
    """Return the mean over the seeds of the slope of each seed's line through its best rates."""
    if len(places) < 2:
        return None
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


def choose_rate(curves: Curves, without: int | None = None) -> float | None:
    """Return the rate of the grid at which the fewest seeds fail, and of these the one with the lowest mean loss; None
    where all fail at every rate. `without`: a seed that is left out."""
    kept = [curve for seed, curve in curves.items() if seed != without]
    ranks = []
    for rate in kept[0]:
        losses = [loss for curve in kept if (loss := curve[rate]) is not None]
        if losses:
            ranks.append((len(kept) - len(losses), math.fsum(losses) / len(losses), rate))
    return min(ranks)[2] if ranks else None


def compare_rates(small: Curves, large: Curves) -> Rates | None:
    """Return the comparison of the best rate of the curves `small` with that of the curves `large`, on the latter. None
    for fewer than three seeds that both have, where the seeds of a size failed at every rate, and where the large size
    was not trained at the rate."""
    seeds = sorted({*small} & {*large})
    if len(seeds) < LEAST:
        return None
    losses, same = [], True
    for seed in seeds:
        transferred, tuned = choose_rate(small, seed), choose_rate(large, seed)
        if transferred is None or tuned is None or transferred not in large[seed]:
            return None
        losses.append((large[seed][transferred], large[seed][tuned]))
        same = same and transferred == tuned
    return Rates(
        tuple(first - second for first, second in losses if first is not None and second is not None),
        same,
        len(seeds),
        failed=sum(first is None for first, _ in losses),
        other_failed=sum(second is None for _, second in losses),
        alone=sum(first is None and second is not None for first, second in losses),
        other_alone=sum(second is None and first is not None for first, second in losses),
    )


def bound_cost(rates: Rates, level: float) -> Cost:
    """Return the cost of the first of `rates` against the second, with an interval at `level`."""
    estimate = bound_mean(rates.differences, level, scale=1.0) if rates.differences else None
    fails_more = rates.alone > rates.other_alone and compare_failures(rates.alone, rates.other_alone) <= level
    return Cost(rates, estimate, fails_more)


def _find_word(cost: Cost | None, effect: float | None, edges: tuple[bool, bool]) -> str:
    """Return the word on the smallest size's rate at the largest. `edges`: whether some seed's best rate lies at
    an edge of the searched ones at the smallest size, so that the best rate is not known, and at the largest, where a
    better one may lie beyond."""
    if cost is None or edges[0]:
        return "undecided"
    if cost.fails_more:
        return "fails more often"
    ends = cost.estimate.interval if cost.estimate else None
    if cost.rates.failed > cost.rates.other_failed or (ends is None and not cost.rates.same):
        return "undecided"
    if ends is not None and ends[0] > 0:
        return "costs"
    small = cost.rates.same or (ends is not None and effect is not None and ends[1] < effect)
    return "holds" if small and effect is not None and not edges[1] else "undecided"
