"""The arms on fresh seeds, each compared with the baseline: how often it fails, and its objective when it trains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ablate.verdict.failures import ALPHA, count_failures, count_family
from ablate.verdict.intervals import bound_mean, least_sd_of_value
from ablate.verdict.looks import find_last_level
from ablate.verdict.pairing import Pairing, pair_outcomes
from ablate.verdict.records import Compared, FreshOutcomes, Kind, Versus
from ablate.verdict.sequential import LEAST


def compare(
    arms: Mapping[str, FreshOutcomes],
    baselines: str | Mapping[str, str],
    *,
    planned: int,
    maximize: bool = False,
    effect: float | None = None,
    resolution: float = 0.0,
    shared: Collection[str] = (),
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
            compared[arm] = Compared("baseline", **facts)
            continue
        pairing = pairings[arm]
        versus = measure_pair(pairing, ALPHA / size, resolution)
        settled = _find_settled(fresh, base, pairing, versus)
        if settled is not None:
            compared[arm] = Compared(settled, **facts, versus=versus)
            continue
        crossing: dict[str, Any] = {}
        if versus.side and any(fresh.params.get(path) != base.params.get(path) for path in shared):
            loser = baseline if _wins(versus, maximize) else arm
            own = loser == arm
            crossed = None
            if fresh.crossed is not None and fresh.crossed.loser == loser:
                ours, theirs = (fresh.crossed, base) if own else (fresh, fresh.crossed)
                crossed = pair_outcomes(ours.outcomes, theirs.outcomes, fresh.looks)
            crossing = _cross(loser, own, versus, crossed, ALPHA / size, resolution)
        kind = _decide(versus, maximize, effect, crossing.get("agrees"))
        compared[arm] = Compared(kind, **facts, versus=versus, **crossing)
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


def _cross(
    loser: str, own: bool, versus: Versus, pairing: Pairing | None, alpha: float, resolution: float
) -> dict[str, Any]:
    """Return the fields of a `Compared` that the comparison at the winner's settings adds. Both comparisons must claim
    the same, so that neither needs a correction for the other (an intersection-union test).

    Args:
        loser: its name.
        own: whether it is the arm, not the baseline.
        versus: the comparison of both at their own settings.
        pairing: the arm and the baseline, one of them at the other's settings; None: that was not run.
        alpha: the error of the comparison over all looks.
        resolution: of the metric.
    """
    if pairing is None:
        return {"needs_crossed": loser, "agrees": False}
    crossed = measure_pair(pairing, alpha, resolution)
    lost, won = (crossed.failed, crossed.other_failed) if own else (crossed.other_failed, crossed.failed)
    # of equal settings that fail with the same probability, one fails on all of n seeds and the other on none in at
    # most 0.25^n: no further test is needed where nothing is left to compare
    beaten = crossed.side == versus.side or (crossed.seeds >= LEAST and lost == crossed.seeds and won == 0)
    complete = crossed.seeds >= versus.seeds
    return {
        "crossed": crossed,
        "crossed_loser": loser,
        "needs_crossed": None if complete else loser,
        "agrees": complete and beaten,
    }


def _decide(versus: Versus, maximize: bool, effect: float | None, agrees: bool | None) -> Kind:
    """Return the kind of verdict for two arms that both trained on some seeds. `agrees`: of the crossed comparison."""
    more, fewer = versus.failed > versus.other_failed, versus.failed < versus.other_failed
    claimed = versus.side and agrees is not False
    if claimed and _wins(versus, maximize):
        return "mixed" if more else "better"
    if claimed:
        return "mixed" if fewer else "worse"
    if versus.failure_side:
        return "fails more often" if versus.failure_side > 0 else "fails less often"
    if versus.lies_within(effect) and not more and not fewer:
        return "equivalent"
    return "undecided"
