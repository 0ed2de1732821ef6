"""Comparison of the arms at several sizes: the measurements at each, curves fitted to them, and how both change with
size.

All comparisons are one family: the differences from the baseline at each size, a trend for each arm, and the exact
tests of failures that can reach the level at all share an error of 5 %. Predictions of curves are not claims and have
95 % intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ablate.addons.scaling.fits import Curve, Gap, Interval, SeedDraws, find_interval, fit_curve, fit_gap, varies
from ablate.addons.scaling.trends import FailureTrend, Trend, find_failure_trend, find_trend
from ablate.verdict.comparison import FreshOutcomes, Pairing, Versus, pair_outcomes
from ablate.verdict.failures import ALPHA, FailureShare, count_able, count_failures, smallest_p
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.looks import Looks, find_last_level
from ablate.verdict.sequential import LEAST


@dataclass(frozen=True)
class Prediction:
    """The difference at the largest size, predicted by curves through the other sizes."""

    size: int
    """The index of the largest size."""
    predicted: Interval | None
    """None if the curves of the other sizes have no floor."""
    measured: float
    error: Interval | None
    """Error of the prediction: predicted minus measured."""


@dataclass(frozen=True)
class SizedArm:
    """One arm at each size, the smallest first."""

    outcomes: list[FreshOutcomes]
    """The loss on fresh seeds."""
    failures: list[FailureShare | None]
    """None where no seed ended."""
    estimates: list[Estimate | None]
    """Means of the loss over the seeds that trained; None if none did."""
    curve: Curve | None
    """Through the seeds that trained; None for fewer than four sizes with one."""
    failure_trend: FailureTrend
    """Whether the share of failures changes with size."""
    failure_level: float
    """The largest p-value of the trend that shows a change."""

    @property
    def losses(self) -> list[dict[int, float]]:
        """For each size: seed -> loss, of the seeds that trained."""
        return [take_losses(fresh) for fresh in self.outcomes]


@dataclass(frozen=True)
class SizedPair:
    """An arm against the baseline at each size, the smallest first."""

    measured: list[Versus]
    """At each size, with intervals at the level of the family."""
    differences: list[dict[int, float]]
    """For each size: seed -> difference, of the seeds on which both trained."""
    gap: Gap | None
    """Difference of the curves through the seeds on which both trained; None for fewer than four sizes with one."""
    trend: Trend | None
    """None for fewer than two sizes with a seed on which both trained."""
    prediction: Prediction | None
    """None for fewer than five sizes with a seed on which both trained."""


@dataclass(frozen=True)
class Comparison:
    """All arms of a ladder."""

    baseline: str
    arms: dict[str, SizedArm]
    pairs: dict[str, SizedPair]
    """Arm -> it against the baseline."""
    family: int
    """Comparisons that share an error of 5 %."""
    failure_tests: int
    """Number of exact tests of failures among them."""


def compare_sizes(
    parameters: Sequence[float],
    outcomes: Mapping[str, Sequence[FreshOutcomes]],
    baseline: str,
    effect: float | None = None,
    draws: SeedDraws | None = None,
) -> Comparison:
    """Return the comparison of arms at several sizes.

    Args:
        parameters: of each size, ascending.
        outcomes: arm -> for each size, the outcomes of its fresh seeds; values are losses. Without
            recorded looks there was one, at the seeds that ended.
        baseline: the arm that the others are compared with.
        effect: the smallest change of a difference that matters; None: nothing is claimed to stay.
        draws: of the seeds, for the intervals of the curves.
    """
    draws = draws or SeedDraws()
    fresh = {arm: [_add_look(f) for f in by_size] for arm, by_size in outcomes.items()}
    base = fresh[baseline]
    pairings = {
        arm: [pair_outcomes(a.outcomes, b.outcomes, a.looks) for a, b in zip(by_size, base, strict=True)]
        for arm, by_size in fresh.items()
        if arm != baseline
    }
    failures = {arm: [count_failures(f.outcomes.values()) for f in by_size] for arm, by_size in fresh.items()}
    trends = {
        arm: find_failure_trend([f.failed if f else 0 for f in shares], [f.n if f else 0 for f in shares])
        for arm, shares in failures.items()
    }
    means = len(pairings) * (len(parameters) + 1)
    exact = [smallest_p(sum(pairing.alone)) for by_size in pairings.values() for pairing in by_size]
    family = count_able(means, [*exact, *(trend.smallest_p for trend in trends.values())])
    level = ALPHA / family
    return Comparison(
        baseline,
        {
            arm: SizedArm(
                by_size,
                failures[arm],
                [_estimate(f) for f in by_size],
                fit_curve(parameters, [take_losses(f) for f in by_size], draws, min(map(_find_level, by_size))),
                trends[arm],
                level * min((_share_of_last_look(f.looks) for f in by_size if f.looks), default=0.0),
            )
            for arm, by_size in fresh.items()
        },
        {arm: _compare_pair(parameters, fresh[arm], base, by_size, level, effect, draws)
         for arm, by_size in pairings.items()},
        family,
        family - means,
    )  # fmt: skip


def take_losses(fresh: FreshOutcomes) -> dict[int, float]:
    """Return seed -> loss, of the seeds that trained."""
    return {s: o.value for s, o in fresh.outcomes.items() if o.trained and o.value is not None}


def _compare_pair(
    parameters: Sequence[float],
    arm: Sequence[FreshOutcomes],
    baseline: Sequence[FreshOutcomes],
    pairings: Sequence[Pairing],
    level: float,
    effect: float | None,
    draws: SeedDraws,
) -> SizedPair:
    """Return one arm against the baseline, each claim with an error of `level` over all looks."""
    both = list(zip([take_losses(f) for f in arm], [take_losses(f) for f in baseline], strict=True))
    ours = [{s: a[s] for s in a if s in b} for a, b in both]
    theirs = [{s: b[s] for s in a} for a, (_, b) in zip(ours, both, strict=True)]
    differences = [{s: a[s] - b[s] for s in a} for a, b in zip(ours, theirs, strict=True)]
    scale = max((pairing.scale for pairing in pairings), default=1.0)
    trained = [pairing for pairing in pairings if pairing.pairs >= LEAST]
    # A trend is looked at whenever a size is: it has the strictest of their levels.
    strictest = min((pairing.find_level(level) for pairing in trained), default=0.0)
    return SizedPair(
        [pairing.measure(level) for pairing in pairings],
        differences,
        fit_gap(parameters, ours, theirs, draws, min((p.find_level(ALPHA) for p in pairings if p.pairs), default=0.0)),
        find_trend([list(d.values()) for d in differences], strictest, effect, scale),
        _predict_largest(parameters, ours, theirs, differences, draws),
    )


def _predict_largest(
    parameters: Sequence[float],
    ours: Sequence[Mapping[int, float]],
    theirs: Sequence[Mapping[int, float]],
    differences: Sequence[Mapping[int, float]],
    draws: SeedDraws,
) -> Prediction | None:
    """Return the prediction of curves through the other sizes for the largest at which both trained, and its error."""
    kept = [k for k, pairs in enumerate(differences) if pairs]
    if not kept:
        return None
    last = kept[-1]
    gap = fit_gap(parameters[:last], ours[:last], theirs[:last], draws, ALPHA)
    if gap is None:
        return None
    measured = draws.draw_mean(last, ours[last]) - draws.draw_mean(last, theirs[last])
    if not gap.reaches(parameters[last]):
        return Prediction(last, None, float(measured[0]), None)
    predicted = gap.draw(parameters[last])
    pairs = list(differences[last].values())
    sure = len(pairs) >= LEAST and varies(pairs, max(map(abs, ours[last].values())))
    error = find_interval(predicted - measured, gap.level if sure else 0.0)
    return Prediction(last, find_interval(predicted, gap.level), float(measured[0]), error)


def _add_look(fresh: FreshOutcomes) -> FreshOutcomes:
    """Return `fresh` with one look at the seeds that ended, if no look was recorded."""
    n = len(fresh.outcomes)
    if fresh.looks or not n:
        return fresh
    return replace(fresh, looks=Looks((n,), n))


def _find_level(fresh: FreshOutcomes) -> float:
    """Return the level of the interval of an arm's mean, 5 % over all looks; 1 if no seed trained, so that no curve
    uses it."""
    if not fresh.looks or not take_losses(fresh):
        return 1.0
    return find_last_level(fresh.looks, ALPHA, [outcome.trained for outcome in fresh.outcomes.values()])


def _estimate(fresh: FreshOutcomes) -> Estimate | None:
    losses = list(take_losses(fresh).values())
    return bound_mean(losses, _find_level(fresh)) if losses else None


def _share_of_last_look(looks: Looks) -> float:
    """Return the share of the error that the last look may spend on its own, independent of the other looks."""
    *earlier, last = looks.share_spent()
    return last - (earlier[-1] if earlier else 0.0)
