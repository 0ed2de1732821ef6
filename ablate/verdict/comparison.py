"""Arms on fresh seeds, each compared with its baseline on the same seeds: how often it fails, and its objective when it
trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, Protocol, get_args

from ablate.config.formatting import count_noun
from ablate.verdict.failures import ALPHA, FailureShare, compare_failures, count_able, count_failures, smallest_p
from ablate.verdict.intervals import (
    Estimate,
    bound_mean,
    find_t_limit,
    least_sd_of_difference,
    least_sd_of_value,
)
from ablate.verdict.looks import Looks, find_last_level, nominal_levels, sign_levels
from ablate.verdict.outcomes import Outcome
from ablate.verdict.sequential import LEAST
from ablate.verdict.tails import Typical, describe_typical
from ablate.verdict.valley import NOTHING, Rival, Valley


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

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the test of its failures can have."""
        return smallest_p(sum(self.alone))

    def measure(self, alpha: float, resolution: float = 0.0) -> Versus:
        """Return the figures, with an error of `alpha` over all looks."""
        level = self.find_level(alpha)
        failure_level = (
            sign_levels(self.looks, alpha, self.discordant_at)[-1] if self.looks and any(self.alone) else 0.0
        )
        return Versus(
            self.seeds,
            self.failed,
            self.other_failed,
            compare_failures(*self.alone) if any(self.alone) else None,
            failure_level,
            self.estimate(level, resolution),
            self.left_out,
            level,
            self._describe_typical(alpha, resolution),
        )

    def find_level(self, alpha: float) -> float:
        """Return the level of the mean difference at the last look, for an error of `alpha` over all looks."""
        return nominal_levels(self.looks, alpha, self.pairs_at)[-1] if self.looks and self.ready else 0.0

    def estimate(self, level: float, resolution: float = 0.0) -> Estimate | None:
        """Return the mean difference with its interval at `level`; None if there is no seed on which both trained. No
        interval for fewer than three pairs."""
        if not self.differences:
            return None
        level = level if self.pairs >= LEAST else 0.0
        return bound_mean(self.differences, level, least_sd_of_difference(resolution), self.scale)

    def _describe_typical(self, alpha: float, resolution: float) -> Typical | None:
        """Return what the pairs show of their median, with an error of `alpha` over all looks; None where there is no
        verdict on them."""
        if not (self.looks and self.ready and self.pairs >= LEAST):
            return None
        return describe_typical(self.differences, self.looks, self.pairs_at, alpha, least_sd_of_difference(resolution))


def pair_outcomes(arm: Mapping[int, Outcome], other: Mapping[int, Outcome], looks: Looks | None) -> Pairing:
    """Return `arm` and `other` (seed -> outcome, in the order of the looks) on the seeds that both have, in the order
    of the arm's. Seeds after the last look are included at the next look."""
    return pair_weighted({"arm": 1.0, "other": -1.0}, {"arm": arm, "other": other}, looks)


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
    "better on most seeds",
    "worse on most seeds",
    "equivalent on most seeds",
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
"""The verdicts. `on most seeds`: of the typical seed, and not on average, as a tail shows."""
UNCOMPARED: tuple[Kind, ...] = ("baseline", "cell")
"""Kinds of arms that are compared with none: a baseline, and the cells of a factorial, whose contrasts are compared."""
_OPEN = {*UNCOMPARED, "undecided", "mixed", "fails more often", "fails less often", "figures"}
DECIDED = frozenset(get_args(Kind)) - _OPEN
"""Kinds of verdict for which no further seeds are run."""


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
    find_valley: Callable[[], Valley] = field(default=lambda: NOTHING, compare=False)
    """Returns what its other settings promise, which takes a while and is asked only of what would be claimed; of an
    arm that searches nothing, nothing."""
    pending: bool = False
    """Whether the settings were chosen anew, and some seeds that were looked at are still to be run at them."""


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
    typical: Typical | None = None
    """The median of the same pairs, with the exact sign test; None for fewer than three pairs."""
    noun: ClassVar[str] = "seed"
    """What is counted."""

    @property
    def other_seeds(self) -> int:
        """Seeds of the other."""
        return self.seeds

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that an exact test of the difference can have on so few seeds."""
        return smallest_p(self.seeds - self.left_out)

    @property
    def exact_p(self) -> float | None:
        """The p-value of the exact test beside the interval; None: there is none."""
        return self.typical.p if self.typical else None

    def count_seeds(self) -> str:
        """Return '10 seeds'."""
        return count_noun(self.seeds, self.noun)

    @property
    def fails_more(self) -> int:
        """1: the arm failed on a larger share of its seeds than the other; -1: on a smaller one; 0: on equal ones."""
        ours, others = self.failed * self.other_seeds, self.other_failed * self.seeds
        return (ours > others) - (ours < others)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference."""
        return self.difference.interval if self.difference else None

    @property
    def side(self) -> int:
        """-1: the typical difference is shown to be below 0; 1: above; 0: neither. The interval of the mean shows it
        where the pairs agree, and the sign test alone where a tail shows."""
        if self.typical is None:
            return 0
        mean = self.difference.sign if self.difference else 0
        return mean if mean and self.typical.agrees(mean) else self.typical.side

    @property
    def on_average(self) -> bool:
        """Whether the side that is shown of the typical pair is shown of the mean as well: the interval shows it, and
        no tail reaches across 0."""
        side = self.side
        if not side or self.typical is None or self.difference is None or self.difference.sign != side:
            return False
        return self.typical.tail != -side or self.typical.is_unanimous

    def list_conclusions(self) -> dict[str, Any]:
        """Return what follows from the figures, for JSON."""
        return {"interval": self.interval, "side": self.side, "on_average": self.on_average}

    def count_majority(self) -> str:
        """Return '9 of 10 seeds': on how many pairs the sign of the typical difference was seen; ties are named."""
        if self.typical is None:
            return count_noun(0, "seed")
        above, below = self.typical.above, self.typical.below
        n = self.seeds - self.left_out
        ties = f" ({n - above - below} tied)" if n > above + below else ""
        return f"{max(above, below)} of {count_noun(n, 'seed')}{ties}"

    @property
    def failure_side(self) -> int:
        """1: the arm is shown to fail more often than the other; -1: less often; 0: neither."""
        if self.failure_p is None or self.failure_p > self.failure_level:
            return 0
        return self.fails_more

    def lies_within(self, effect: float | None) -> bool:
        """Whether the typical difference is shown to lie within +-`effect`: the mean is or, where a tail shows, the
        interval of the median lies there."""
        t = self.typical
        shown = t is not None and t.tail != 0 and is_within(t.interval, effect)
        return shown or self.mean_lies_within(effect)

    def mean_lies_within(self, effect: float | None) -> bool:
        """Whether the mean is shown to lie within +-`effect`: its interval does, the pairs agree, and no tail reaches
        out of it."""
        t = self.typical
        if t is None or not is_within(self.interval, effect) or not is_within(t.agreeing, effect):
            return False
        return not t.tail or is_within(t.range, effect)


def is_within(ends: tuple[float, float] | None, effect: float | None) -> bool:
    """Return whether an interval lies within +-`effect`."""
    return effect is not None and ends is not None and -effect < ends[0] and ends[1] < effect


@dataclass(frozen=True)
class Challenge:
    """The same comparison with the losers at any other settings: an arm has lost only if none of them can be expected
    to win. Of an equivalence both arms are challenged."""

    arms: tuple[str, ...]
    """The arms of the comparison."""
    rivals: Mapping[str, Rival]
    """Challenged arm -> of its other settings those that endanger the claim most. Arms without others are left out."""
    held: bool
    """Whether the claim stands at all other settings."""
    unheld: tuple[str, ...]
    """Challenged arms whose other settings may overturn it."""
    open: tuple[str, ...]
    """Those of them that may try further settings before anything is said."""
    edges: Mapping[str, str]
    """Arm -> the end of its range at which it stands; nothing is claimed of such an arm."""


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
    challenge: Challenge | None = None
    """None where nothing is to be claimed at the chosen settings."""

    @property
    def decided(self) -> bool:
        """Whether the verdict is final, so that no further seeds are run for it."""
        return self.kind in DECIDED

    @property
    def difference(self) -> Estimate | None:
        """At the chosen settings, over the seeds on which all trained."""
        return self.versus.difference if self.versus else None

    @property
    def open(self) -> tuple[str, ...]:
        """Arms that may still try other settings before anything is claimed."""
        return self.challenge.open if self.challenge and not self.challenge.held else ()

    def name_kind(self) -> str:
        """Return the kind in a word or two, with its open requirements."""
        v = self.versus
        if self.kind == "figures":
            return "no verdict yet"
        word, typical, _ = self.kind.partition(" on most seeds")
        if typical and v is not None and v.typical is not None:
            if word in ("equivalent", "additive"):
                return f"{word} within {self.effect:.2g} on a typical seed; on average not shown"
            return f"{word} on {v.count_majority()}; on average not shown"
        if self.kind in ("equivalent", "additive"):
            return f"{self.kind} within {self.effect:.2g}"
        if self.kind == "undecided" and v is not None:
            if self.challenge and not self.challenge.held:
                return self._name_unheld(self.challenge)
            return f"inconclusive with {v.count_seeds()}"
        if self.kind in ("better", "worse") and v is not None and v.lies_within(self.effect):
            return f"{self.kind}, by less than matters"
        return self.kind

    def _name_unheld(self, challenge: Challenge) -> str:
        if challenge.edges:
            return "inconclusive, not tuned"
        if challenge.open:
            return "inconclusive, not yet challenged"
        return "inconclusive, as the tuning was not exhausted"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        plain = {**asdict(self), "decided": self.decided}
        if self.versus:
            plain["versus"] |= self.versus.list_conclusions()
        if self.looks and not self.looks.before:
            del plain["looks"]["before"]
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

    def name_kind(self) -> str:
        """Return the kind in a word or two, with its open requirements."""
        if self.kind == "mixed" and self.versus is not None:
            more = self.versus.fails_more > 0
            return f"mixed: {'better' if more else 'worse'} when it trains, failed {'more' if more else 'less'}"
        return super().name_kind()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        outcomes = {str(seed): asdict(outcome) for seed, outcome in self.outcomes.items()}
        return {**super().to_dict(), "outcomes": outcomes}


Outcomes = Mapping[int, Outcome]


class Pair(Protocol):
    """The outcomes of an arm beside those of another."""

    @property
    def ready(self) -> bool:
        """Whether there may be a verdict."""

    @property
    def smallest_p(self) -> float:
        """The smallest p-value that the test of their failures can have."""

    def measure(self, alpha: float, resolution: float = 0.0) -> Versus:
        """Return the figures, with an error of `alpha` over all looks."""


def compare(
    arms: Mapping[str, FreshOutcomes],
    baselines: str | Mapping[str, str],
    *,
    planned: int,
    maximize: bool = False,
    effect: float | None = None,
    resolution: float = 0.0,
    others: int = 0,
    pair: Callable[[Outcomes, Outcomes, Looks | None], Pair] = pair_outcomes,
) -> dict[str, Compared]:
    """Return the comparison of each arm with its baseline.

    Args:
        arms: the outcomes of each arm.
        baselines: the baseline of all arms, or arm -> its baseline.
        planned: the planned number of seeds of each arm. maximize: whether a higher objective is better.
        effect: the smallest difference that matters; None: nothing is called equivalent.
        resolution: 1/N for a metric that counts N items, such as accuracy; 0: it does not count.
        others: number of further comparisons that share the error: of other sizes, tasks, earlier baselines.
        pair: puts the outcomes of an arm beside those of its baseline: on the same seeds, or as separate samples
            (`unpaired.Samples`).
    """
    against = dict.fromkeys(arms, baselines) if isinstance(baselines, str) else baselines
    bases = {arm: arms.get(against[arm], FreshOutcomes({})) for arm in arms}
    pairings = {
        arm: pair(fresh.outcomes, bases[arm].outcomes, fresh.looks)
        for arm, fresh in arms.items()
        if arm != against[arm]
    }
    size = count_able(others + len(pairings), [pairing.smallest_p for pairing in pairings.values()])
    compared = {}
    for arm, fresh in arms.items():
        facts, baseline, base = _describe_arm(fresh, planned, size, effect, resolution), against[arm], bases[arm]
        if arm == baseline:
            compared[arm] = Compared(kind="baseline", **facts)
            continue
        pairing = pairings[arm]
        versus = pairing.measure(ALPHA / size, resolution)
        settled = _find_settled(fresh, base, pairing, versus)
        if settled is not None:
            compared[arm] = Compared(kind=settled, **facts, versus=versus)
            continue
        challenge = challenge_claim({arm: 1.0, baseline: -1.0}, {**arms, baseline: base}, versus, maximize, effect)
        kind = decide(versus, maximize, effect, challenge, versus.failure_side)
        compared[arm] = Compared(kind=kind, **facts, versus=versus, challenge=challenge)
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


def _find_settled(arm: FreshOutcomes, base: FreshOutcomes, pairing: Pair, versus: Versus) -> Kind | None:
    """Return the kind if there is nothing to test: too few seeds, or an arm that never trained; otherwise None."""
    if not arm.found:
        return "could not be trained"
    if not base.found:
        return "baseline could not be trained"
    if not pairing.ready or arm.pending or base.pending:
        return "figures"
    if versus.failed == versus.seeds and versus.other_failed < versus.other_seeds:
        return "fails on all seeds"
    if versus.other_failed == versus.other_seeds and versus.failed < versus.seeds:
        return "baseline fails on all seeds"
    return None


def challenge_claim(
    weights: Mapping[str, float],
    arms: Mapping[str, FreshOutcomes],
    versus: Versus,
    maximize: bool,
    effect: float | None,
) -> Challenge | None:
    """Return whether the claim of `versus` stands at all other settings of the arms that it is about; None if there is
    no claim. It must stand at each of them, so that none needs a correction for the others (an intersection-union test,
    Berger 1982, Technometrics 24, 295-300).

    Args:
        weights: arm -> its weight in the difference.
        arms: the arms, with what their other settings promise.
        versus: the figures at the chosen settings.
        maximize: whether more of the objective is better.
        effect: the smallest difference that matters; None: not given.
    """
    if versus.difference is None or not (versus.side or versus.lies_within(effect)):
        return None
    floors = {versus.side: 0.0} if versus.side else {1: -(effect or 0.0), -1: -(effect or 0.0)}
    of_mean = versus.difference.sign == versus.side if versus.side else versus.mean_lies_within(effect)
    valleys = {arm: arms[arm].find_valley() for arm in weights}
    rivals: dict[str, Rival] = {}
    unheld: list[str] = []
    for side, floor in floors.items():
        losers = [arm for arm, weight in weights.items() if (weight * side > 0) != maximize and valleys[arm].rivals]
        worst = {arm: _find_worst(versus, of_mean, abs(weights[arm]), valleys[arm].rivals) for arm in losers}
        stands = (
            _find_near_end(versus, of_mean, side, [(abs(weights[arm]), rival) for arm, rival in worst.items()]) > floor
        )
        rivals |= {arm: rival for arm, rival in worst.items() if arm not in rivals or not stands}
        unheld += [] if stands else losers
    edges = {arm: edge for arm in weights if (edge := valleys[arm].edge)}
    may_try = tuple(arm for arm in unheld if valleys[arm].open)
    return Challenge(tuple(weights), rivals, not unheld and not edges, tuple(unheld), may_try, edges)


def _find_worst(versus: Versus, of_mean: bool, weight: float, rivals: Collection[Rival]) -> Rival:
    """Return the settings of a loser at which least is left of the difference."""
    return min(rivals, key=lambda rival: (_find_near_end(versus, of_mean, 0, [(weight, rival)]), -rival.gain))


def _find_near_end(versus: Versus, of_mean: bool, side: int, rivals: Collection[tuple[float, Rival]]) -> float:
    """Return how much of the difference is sure to be left with the losers at `rivals` (weight, settings). The
    variances add up, with the degrees of freedom of Satterthwaite (1946, Biometrics 2, 110-114). Of a claim that is not
    about the mean, and of what typical runs promise, the interval of the median is taken instead, less what the losers
    may gain.

    side: the sign of the difference that is claimed; 0: that of its mean."""
    d, typical = versus.difference, versus.typical
    assert d is not None
    parts = [(weight**2 * rival.variance, rival.freedom) for weight, rival in rivals]
    gain = math.fsum(weight * rival.gain for weight, rival in rivals)
    of_mean = of_mean and not any(rival.typical for _, rival in rivals)
    if of_mean and d.half_width is not None:
        parts.append(((d.half_width / find_t_limit(versus.level, d.n)) ** 2, d.n - 1.0))
        left = (side * d.mean if side else abs(d.mean)) - gain
    elif typical is not None and typical.interval is not None:
        left = min(side * end for end in typical.interval) - gain if side else -gain
    else:
        return -math.inf
    variance = math.fsum(part for part, _ in parts)
    if math.isinf(variance):
        return -math.inf
    freedom = variance**2 / math.fsum(part**2 / free for part, free in parts if part) if variance else 1.0
    return left - find_t_limit(versus.level, freedom + 1) * math.sqrt(variance)


def decide(
    versus: Versus,
    maximize: bool,
    effect: float | None,
    challenge: Challenge | None,
    failure_side: int,
    can_mix: bool = True,
) -> Kind:
    """Return the kind of verdict of a difference that both arms have on some seeds.

    Args:
        versus: the figures at the chosen settings.
        maximize: whether more of the objective is better.
        effect: the smallest difference that matters; None: not given.
        challenge: of the claim; None: there is none.
        failure_side: 1: the arm is shown to fail more often; -1: less often; 0: neither.
        can_mix: whether a winner that fails more is no winner.
    """
    held = challenge is not None and challenge.held
    if versus.side and held:
        wins = versus.side == (1 if maximize else -1)
        if can_mix and versus.fails_more == (1 if wins else -1):
            return "mixed"
        if wins:
            return "better" if versus.on_average else "better on most seeds"
        return "worse" if versus.on_average else "worse on most seeds"
    if failure_side:
        return "fails more often" if failure_side > 0 else "fails less often"
    if held and not versus.fails_more:
        return "equivalent" if versus.mean_lies_within(effect) else "equivalent on most seeds"
    return "undecided"
