"""Arms on fresh seeds, each compared with its baseline on the same seeds: how often it fails, and its objective when it
trains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from ablate.config.formatting import count_noun
from ablate.verdict.failures import ALPHA, FailureShare, compare_failures, count_failures, count_family
from ablate.verdict.intervals import Estimate, bound_mean, least_sd_of_difference, least_sd_of_value
from ablate.verdict.looks import Looks, find_last_level, nominal_levels, sign_levels
from ablate.verdict.outcomes import Outcome
from ablate.verdict.sequential import LEAST


@dataclass(frozen=True)
class Pairing:
    """An arm and another on the seeds that both have, up to the last look, or all if there was none."""

    looks: Looks | None
    """The looks so far; None: no round is complete."""
    seeds: int
    """Seeds on which both have an outcome."""
    failed: int
    """Failed seeds of the arm."""
    other_failed: int
    alone: tuple[int, int]
    """Seeds on which only the arm failed, and only the other."""
    differences: tuple[float, ...]
    """The arm minus the other, on the seeds on which both trained."""
    scale: float
    """The largest magnitude among the subtracted values."""
    pairs_at: tuple[int, ...]
    """At each look, seeds on which both had trained."""
    discordant_at: tuple[int, ...]
    """At each look, seeds on which exactly one had failed."""

    @property
    def pairs(self) -> int:
        """Seeds on which both trained."""
        return len(self.differences)

    @property
    def left_out(self) -> int:
        """Seeds that are not in the mean difference, because one or both failed."""
        return self.seeds - self.pairs

    @property
    def ready(self) -> bool:
        """Whether there may be a verdict: a look was made, at three seeds or more."""
        return self.looks is not None and self.seeds >= LEAST

    @cached_property
    def failure_p(self) -> float | None:
        """The p-value of the exact sign test; None if no seed distinguishes the two."""
        return compare_failures(*self.alone) if any(self.alone) else None

    def find_level(self, alpha: float) -> float:
        """Return the level of the mean difference at the last look, for an error of `alpha` over all looks."""
        return nominal_levels(self.looks, alpha, self.pairs_at)[-1] if self.looks and self.ready else 0.0

    def find_failure_level(self, alpha: float) -> float:
        """Return the level of the sign test at the last look, for an error of `alpha` over all looks."""
        return sign_levels(self.looks, alpha, self.discordant_at)[-1] if self.looks and any(self.alone) else 0.0

    def estimate(self, level: float, resolution: float = 0.0) -> Estimate | None:
        """Return the mean difference with its interval at `level`; None if there is no seed on which both trained. No
        interval for fewer than three pairs."""
        if not self.differences:
            return None
        level = level if self.pairs >= LEAST else 0.0
        return bound_mean(self.differences, level, least_sd_of_difference(resolution), self.scale)


def pair_outcomes(arm: Mapping[int, Outcome], other: Mapping[int, Outcome], looks: Looks | None) -> Pairing:
    """Return `arm` and `other` (seed -> outcome, in the order of the seeds) on the seeds that both have. Seeds after
    the last look are included at the next look."""
    return pair_weighted({"other": -1.0, "arm": 1.0}, {"other": other, "arm": arm}, looks)


def pair_weighted(
    weights: Mapping[str, float], outcomes: Mapping[str, Mapping[int, Outcome]], looks: Looks | None
) -> Pairing:
    """Return the weighted sum of several arms (arm -> seed -> outcome, in the order of the seeds) on the seeds that all
    have, up to the last look. "The arm" of the pairing are those with positive weights."""
    sizes = looks.sizes if looks else ()
    first, *rest = (outcomes[arm] for arm in weights)
    common = [seed for seed in first if all(seed in other for other in rest)]
    common = common[: sizes[-1]] if sizes else common
    differences: list[float] = []
    scale, failed, other_failed, more, fewer = 0.0, 0, 0, 0, 0
    pairs_at: list[int] = []
    discordant_at: list[int] = []
    for count, seed in enumerate(common, 1):
        ended = {arm: outcomes[arm][seed] for arm in weights}
        lost = [arm for arm, outcome in ended.items() if not outcome.trained]
        if lost:
            ours = sum(weights[arm] > 0 for arm in lost)
            failed, other_failed = failed + ours, other_failed + len(lost) - ours
            more, fewer = more + (2 * ours > len(lost)), fewer + (2 * ours < len(lost))
        else:
            values = {arm: outcome.value or 0.0 for arm, outcome in ended.items()}
            differences.append(sum(weight * values[arm] for arm, weight in weights.items()))
            scale = max(scale, *map(abs, values.values()))
        if count in sizes:
            pairs_at.append(len(differences))
            discordant_at.append(more + fewer)
    short = len(sizes) - len(pairs_at)  # looks at more seeds than there are now
    return Pairing(
        looks,
        len(common),
        failed,
        other_failed,
        (more, fewer),
        tuple(differences),
        scale,
        (*pairs_at, *[len(differences)] * short),
        (*discordant_at, *[more + fewer] * short),
    )


Kind = Literal[
    "baseline",
    "cell",
    "better",
    "worse",
    "equivalent",
    "undecided",
    "mixed",
    "fails more often",
    "fails less often",
    "fails on all seeds",
    "baseline fails on all seeds",
    "baseline could not be trained",
    "could not be trained",
    "figures",
]
UNCOMPARED: tuple[Kind, ...] = ("baseline", "cell")
"""Kinds of arms that are compared with none: a baseline, and the cells of a factorial, whose contrasts are compared."""
DECIDED = frozenset(
    (
        "better",
        "worse",
        "equivalent",
        "fails on all seeds",
        "baseline fails on all seeds",
        "could not be trained",
        "baseline could not be trained",
    )
)
"""Kinds of verdict for which no further seeds are run."""


CrossedRuns = Mapping[tuple[str, str], Mapping[int, Outcome]]
"""(loser, winner) -> seed -> outcome, in the order of the seeds, of the loser at the winner's values of the searched
parameters that both have."""


@dataclass(frozen=True)
class FreshOutcomes:
    """The chosen settings of an arm, on fresh seeds."""

    outcomes: Mapping[int, Outcome]
    """Seed -> outcome, in the order of the seeds; seeds that have not ended are left out."""
    params: dict[str, Any] = field(default_factory=dict)
    """The settings."""
    looks: Looks | None = None
    """The rounds that are complete; None: no round is."""
    found: bool = True
    """Whether a trial of its search completed."""


@dataclass(frozen=True)
class Versus:
    """The comparison of an arm with another, on the seeds that both have."""

    seeds: int
    failed: int
    """Failed seeds of the arm."""
    other_failed: int
    failure_p: float | None
    """The p-value of the exact sign test; None if no seed distinguishes the two."""
    failure_level: float
    """The largest p-value that shows that one fails more often; 0: no outcome would."""
    difference: Estimate | None
    """The arm minus the other, over the seeds on which both trained, with the interval at `level`."""
    left_out: int
    """Number of seeds that are not in the difference, because one or both failed."""
    level: float
    """Level of the interval of the difference; 0: there is none."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference."""
        return self.difference.interval if self.difference else None

    @property
    def side(self) -> int:
        """-1: the difference is shown to be below 0; 1: above; 0: neither."""
        ends = self.interval
        return 0 if ends is None else (ends[0] > 0) - (ends[1] < 0)

    @property
    def failure_side(self) -> int:
        """1: the arm is shown to fail more often than the other; -1: less often; 0: neither."""
        if self.failure_p is None or self.failure_p > self.failure_level:
            return 0
        return 1 if self.failed > self.other_failed else -1

    def lies_within(self, effect: float | None) -> bool:
        """Whether the whole interval lies within +-`effect`."""
        ends = self.interval
        return effect is not None and ends is not None and -effect < ends[0] and ends[1] < effect


@dataclass(frozen=True)
class Crossing:
    """The same comparison with the losers at the winners' settings: if the settings differ, only what also holds there
    is claimed."""

    pairs: tuple[tuple[str, str], ...]
    """(loser, winner): those that are behind, and those at whose settings they are trained."""
    missing: tuple[tuple[str, str], ...]
    """The `pairs` that are still to be trained on some seed before anything is claimed."""
    versus: Versus | None = None
    """The figures over the seeds so far; None: there are none, or they leave nothing to compare."""
    agrees: bool = False
    """Whether it is complete and shows the same."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The verdict of a comparison, and its basis."""

    kind: str
    planned: int
    """Planned number of seeds."""
    looks: Looks | None
    """The rounds that are complete; None: no round is."""
    family: int
    """Comparisons that share 5 %."""
    effect: float | None
    """The smallest difference that matters; None: not given."""
    versus: Versus | None = None
    """The figures at the chosen settings; None where nothing is compared."""
    crossing: Crossing | None = None
    """None where none is needed: no difference is shown, or the settings are the same."""

    @property
    def decided(self) -> bool:
        """Whether the verdict is final, so that no further seeds are run for it."""
        return self.kind in DECIDED

    @property
    def difference(self) -> Estimate | None:
        """At the chosen settings, over the seeds on which all trained."""
        return self.versus.difference if self.versus else None

    @property
    def difference_there(self) -> Estimate | None:
        """The same with the losers at the winners' settings."""
        return self.crossing.versus.difference if self.crossing and self.crossing.versus else None

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """(loser, winner): losers that are still to be trained at the winner's settings before anything is claimed."""
        return self.crossing.missing if self.crossing else ()

    def name_kind(self) -> str:
        """Return the kind in a word or two, with its open requirements."""
        v = self.versus
        if self.kind == "figures":
            return "no verdict yet"
        if self.kind in ("equivalent", "additive"):
            return f"{self.kind} within {self.effect:.2g}"
        if self.kind == "undecided" and v is not None:
            if v.side:
                return "inconclusive, not yet crossed" if self.missing else "inconclusive, as settings differ"
            return f"inconclusive with {count_noun(v.seeds, 'seed')}"
        if self.kind in ("better", "worse") and v is not None and v.lies_within(self.effect):
            return f"{self.kind}, by less than matters"
        return self.kind

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plain = {**asdict(self), "decided": self.decided}
        if self.versus:
            plain["versus"]["interval"] = self.versus.interval
        if self.crossing and self.crossing.versus:
            plain["crossing"]["versus"]["interval"] = self.crossing.versus.interval
        return plain


@dataclass(frozen=True, kw_only=True)
class Compared(Claim):
    """The comparison of an arm with its baseline."""

    kind: Kind
    outcomes: Mapping[int, Outcome]
    """Seed -> outcome, of all seeds that ended."""
    params: dict[str, Any]
    """The settings."""
    failures: FailureShare | None
    """Failures of the seeds up to the last look; None without a seed."""
    estimate: Estimate | None
    """Mean of the objective over the seeds up to the last look on which it trained; 95 % over all looks."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        outcomes = {str(seed): asdict(outcome) for seed, outcome in self.outcomes.items()}
        return {**super().to_dict(), "outcomes": outcomes}


def compare(
    arms: Mapping[str, FreshOutcomes],
    baselines: str | Mapping[str, str],
    *,
    planned: int,
    maximize: bool = False,
    effect: float | None = None,
    resolution: float = 0.0,
    shared: Collection[str] = (),
    crossed: CrossedRuns | None = None,
    others: int = 0,
) -> dict[str, Compared]:
    """Return the comparison of each arm with its baseline.

    Args:
        arms: the outcomes of each arm.
        baselines: the baseline of all arms, or arm -> its baseline.
        planned: the planned number of seeds of each arm. maximize: whether a higher objective is better.
        effect: the smallest difference that matters; None: nothing is called equivalent.
        resolution: 1/N for a metric that counts N items, such as accuracy; 0: it does not count.
        shared: paths of the searched parameters that the arms share; if an arm and the baseline differ in one, a
            difference is claimed only if it also holds at the winner's settings.
        crossed: the runs there.
        others: number of further comparisons that share the error: of other sizes, tasks, earlier baselines.
    """
    against = dict.fromkeys(arms, baselines) if isinstance(baselines, str) else baselines
    bases = {arm: arms.get(against[arm], FreshOutcomes({})) for arm in arms}
    pairings = {
        arm: pair_outcomes(fresh.outcomes, bases[arm].outcomes, fresh.looks)
        for arm, fresh in arms.items()
        if arm != against[arm]
    }
    size = count_family(others + len(pairings), [sum(pairing.alone) for pairing in pairings.values()])
    compared = {}
    for arm, fresh in arms.items():
        facts, baseline, base = _describe_arm(fresh, planned, size, effect, resolution), against[arm], bases[arm]
        if arm == baseline:
            compared[arm] = Compared(kind="baseline", **facts)
            continue
        pairing = pairings[arm]
        versus = measure_pair(pairing, ALPHA / size, resolution)
        settled = _find_settled(fresh, base, pairing, versus)
        if settled is not None:
            compared[arm] = Compared(kind=settled, **facts, versus=versus)
            continue
        crossing = None
        if versus.side and differ(fresh, base, shared):
            pair = (baseline, arm) if _wins(versus, maximize) else (arm, baseline)
            there, own = (crossed or {}).get(pair), pair[0] == arm
            outcomes = (there or {}, base.outcomes) if own else (fresh.outcomes, there or {})
            again = pair_outcomes(*outcomes, fresh.looks) if there else None
            crossing = _cross(pair, own, versus, again, ALPHA / size, resolution)
        kind = _decide(versus, maximize, effect, crossing)
        compared[arm] = Compared(kind=kind, **facts, versus=versus, crossing=crossing)
    return compared


def _describe_arm(
    fresh: FreshOutcomes, planned: int, size: int, effect: float | None, resolution: float
) -> dict[str, Any]:
    """Return the figures of one arm alone."""
    looks = fresh.looks
    ended = list(fresh.outcomes.values())[: looks.sizes[-1] if looks else None]
    values = [outcome.value for outcome in ended if outcome.trained and outcome.value is not None]
    level = find_last_level(looks, ALPHA, [outcome.trained for outcome in ended]) if looks else 0.0
    return {
        "outcomes": fresh.outcomes,
        "params": fresh.params,
        "planned": planned,
        "failures": count_failures(ended),
        "estimate": bound_mean(values, level, least_sd_of_value(resolution)) if values else None,
        "looks": looks,
        "family": size,
        "effect": effect,
    }


def measure_pair(pairing: Pairing, alpha: float, resolution: float = 0.0) -> Versus:
    """Return the figures of `pairing`, with an error of `alpha` over all looks."""
    level = pairing.find_level(alpha)
    return Versus(
        pairing.seeds,
        pairing.failed,
        pairing.other_failed,
        pairing.failure_p,
        pairing.find_failure_level(alpha),
        pairing.estimate(level, resolution),
        pairing.left_out,
        level,
    )


def _find_settled(arm: FreshOutcomes, base: FreshOutcomes, pairing: Pairing, versus: Versus) -> Kind | None:
    """Return the kind if there is nothing to test: too few seeds, or an arm that never trained; otherwise None."""
    if not arm.found:
        return "could not be trained"
    if not base.found:
        return "baseline could not be trained"
    if not pairing.ready:
        return "figures"
    if versus.failed == versus.seeds > versus.other_failed:
        return "fails on all seeds"
    if versus.other_failed == versus.seeds > versus.failed:
        return "baseline fails on all seeds"
    return None


def _wins(versus: Versus, maximize: bool) -> bool:
    """Return whether the arm is shown to be better when it trains."""
    return versus.side == (1 if maximize else -1)


def differ(one: FreshOutcomes, other: FreshOutcomes, shared: Collection[str]) -> bool:
    """Return whether two arms have different values of a parameter that both share."""
    return any(one.params.get(path) != other.params.get(path) for path in shared)


def _cross(
    pair: tuple[str, str], own: bool, versus: Versus, pairing: Pairing | None, alpha: float, resolution: float
) -> Crossing:
    """Return the comparison at the winner's settings. Both comparisons must claim the same, so that neither needs a
    correction for the other (an intersection-union test).

    Args:
        pair: loser and winner.
        own: whether the arm is the loser, not the baseline.
        versus: the comparison of both at their own settings.
        pairing: the arm and the baseline, one of them at the other's settings; None: that was not run.
        alpha: the error of the comparison over all looks.
        resolution: of the metric.
    """
    if pairing is None:
        return Crossing((pair,), (pair,))
    there = measure_pair(pairing, alpha, resolution)
    lost, won = (there.failed, there.other_failed) if own else (there.other_failed, there.failed)
    # of equal settings that fail with the same probability, one fails on all of n seeds and the other on none in at
    # most 0.25^n: no further test is needed where nothing is left to compare
    beaten = there.side == versus.side or (there.seeds >= LEAST and lost == there.seeds and won == 0)
    complete = there.seeds >= versus.seeds
    return Crossing((pair,), () if complete else (pair,), there, complete and beaten)


def _decide(versus: Versus, maximize: bool, effect: float | None, crossing: Crossing | None) -> Kind:
    """Return the kind of verdict for two arms that both trained on some seeds."""
    more, fewer = versus.failed > versus.other_failed, versus.failed < versus.other_failed
    claimed = versus.side and (crossing is None or crossing.agrees)
    if claimed and _wins(versus, maximize):
        return "mixed" if more else "better"
    if claimed:
        return "mixed" if fewer else "worse"
    if versus.failure_side:
        return "fails more often" if versus.failure_side > 0 else "fails less often"
    if versus.lies_within(effect) and not more and not fewer:
        return "equivalent"
    return "undecided"
