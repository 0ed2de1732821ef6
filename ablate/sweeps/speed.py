"""How soon each arm reaches the final objective of its baseline, and the target of the file, in tokens or images, FLOPs
and seconds. Nothing here accesses a storage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ablate.experiment.metrics import find_resolution
from ablate.sweeps.budgets import (
    AXES,
    FLOPS,
    ITEMS,
    SECONDS,
    find_budget,
    find_cost,
    find_updates,
    read_at,
    refuse_seconds,
)
from ablate.sweeps.comparison import collect_outcomes, compare_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run
from ablate.verdict.comparison import Compared
from ablate.verdict.intervals import bound_mean, least_sd_of_difference
from ablate.verdict.speed import (
    Curve,
    Median,
    Reach,
    Share,
    bound_median,
    find_reach,
    find_time,
    is_confirmed,
)


@dataclass(frozen=True)
class Speed:
    """How soon an arm reaches a goal, relative to its baseline, over the seeds of the verdict."""

    goal: float | None
    """The target; None: what the baseline has in the end, or at equal cost, on the same seed."""
    seeds: int
    """Seeds on which both have an outcome."""
    pairs: int
    """Seeds on which both trained, whose mean curves are compared."""
    reached: int
    """Seeds on which the arm reaches it and stays there; on the others it failed or never does."""
    failed: int
    """Seeds on which the arm failed."""
    other_failed: int
    """Seeds on which the baseline failed."""
    validations: int
    """Validations of a training of the arm that can be compared."""
    updates: Reach | None
    """Updates of the arm until the mean of its curves reaches it; None if nothing can be read."""
    shares: dict[str, Share]
    """tokens, flops and seconds, as far as they are known -> cost of the arm until then over that of the baseline,
    which is that of its whole training or, for a target, until it reaches it."""
    claimed: tuple[str, ...]
    """Those in which the arm is claimed to be faster; the others are described."""
    median: Median | None
    """The median over all seeds of the share of tokens, where a seed that does not reach it counts as infinite."""

    @property
    def is_reached(self) -> bool:
        """Whether the mean curve reaches it."""
        return self.updates is not None and self.updates.at is not None


@dataclass(frozen=True)
class _Pair:
    """The trainings of an arm and of its baseline on one seed; None: that failed."""

    own: Run | None
    other: Run | None
    value: float
    """Of the baseline, at its end or at equal cost."""


def compare_speeds(record: SweepRecord) -> dict[str, Speed]:
    """Return arm -> how soon it reaches the final objective of its baseline; empty before there is a verdict. That it
    does so sooner is claimed of an arm whose verdict is better, and needs no error of its own. Empty where the cost of
    a step is not known."""
    if not record.spec.is_own:
        return {}
    return {
        arm: _compare(record, arm, compared, pairs) for arm, (compared, pairs) in _pair_arms(record).items() if pairs
    }


def compare_times(record: SweepRecord) -> dict[str, Speed]:
    """Return arm -> how soon it reaches the target of the file, relative to its baseline; empty without one, and before
    there is a verdict. That it does so sooner is one comparison of the family."""
    if record.spec.target is None:
        return {}
    return {
        arm: _compare_to_target(record, arm, compared, pairs)
        for arm, (compared, pairs) in _pair_arms(record).items()
        if pairs
    }


def _pair_arms(record: SweepRecord) -> dict[str, tuple[Compared, list[_Pair]]]:
    """Return arm -> its comparison, and its trainings up to the last look."""
    if "pairs" not in record.memo:
        outcomes, paired = collect_outcomes(record), {}
        for arm, compared in compare_record(record).items():
            baseline = record.spec.baselines[arm]
            if arm == baseline or compared.versus is None:
                continue
            own, other = ({run.seed: run for run in record.fresh(name)} for name in (arm, baseline))
            ended, base = outcomes[arm].outcomes, outcomes[baseline].outcomes
            common = [seed for seed in ended if seed in base][: compared.looks.sizes[-1] if compared.looks else None]
            paired[arm] = (
                compared,
                [
                    _Pair(
                        own[seed] if ended[seed].trained else None,
                        other[seed] if base[seed].trained else None,
                        base[seed].value or 0.0,
                    )
                    for seed in common
                ],
            )
        record.memo["pairs"] = paired
    found: dict[str, tuple[Compared, list[_Pair]]] = record.memo["pairs"]
    return found


def _find_end(record: SweepRecord, run: Run) -> float:
    """Return the updates of `run` at which it is compared: its last, or those at equal cost."""
    budget = find_budget(record)
    return run.step if budget is None else min(find_updates(run, budget, record.spec.compare.at), run.step)


def _cut(run: Run, end: float) -> dict[float, float]:
    """Return updates -> objective of `run` at its validations up to `end`, and there."""
    curve: dict[float, float] = {step: value for step, value in run.curve.items() if step < end}
    value = read_at(run, end)
    return curve if value is None else {**curve, end: value}


def _compare(record: SweepRecord, arm: str, compared: Compared, pairs: Sequence[_Pair]) -> Speed:
    """Return how soon an arm reaches what its baseline ends at."""
    both = [(pair.own, pair.other, pair.value) for pair in pairs if pair.own and pair.other]
    curves = [_cut(own, _find_end(record, own)) for own, _, _ in both]
    reach = _find_reach(record, compared, curves, [value for _, _, value in both])
    ends = [_find_end(record, other) for _, other, _ in both]
    shares = _find_shares(record, compared, both, reach, ends) if reach else {}
    if reach and record.spec.compare.at == SECONDS and SECONDS in shares:  # the test is repeated along seconds
        shares[SECONDS] = _find_seconds(record, compared, both, curves) or shares[SECONDS]
    times = [
        (
            find_time(_cut(pair.own, _find_end(record, pair.own)), pair.value, _maximizes(record))
            if pair.own
            else None,
            _find_end(record, pair.other) if pair.other else None,
        )
        for pair in pairs
    ]
    claimable = (SECONDS,) if record.spec.compare.at == SECONDS else (ITEMS, FLOPS)
    return _summarise(pairs, reach, curves, shares, claimable if compared.kind == "better" else (), None, times)


def _compare_to_target(record: SweepRecord, arm: str, compared: Compared, pairs: Sequence[_Pair]) -> Speed:
    """Return how soon an arm reaches the target, relative to its baseline."""
    target, maximize = record.spec.target or 0.0, _maximizes(record)
    both = [(pair.own, pair.other, pair.value) for pair in pairs if pair.own and pair.other]
    ours = [_cut(own, own.step) for own, _, _ in both]
    theirs = [_cut(other, other.step) for _, other, _ in both]
    own, other = (find_reach(curves, [target] * len(both), 0.0, maximize=maximize) for curves in (ours, theirs))
    reach, shares, claimable = own, dict[str, Share](), tuple[str, ...]()
    if other and other.at is not None:
        goals = [read_at(run, other.at) for _, run, _ in both]
        reach = _find_reach(record, compared, ours, [goal or 0.0 for goal in goals])
        shares = _find_shares(record, compared, both, reach, [other.at] * len(both)) if reach else {}
        if own and own.at is not None and compared.versus and not compared.versus.failed > compared.versus.other_failed:
            behind = [
                (read_at(run, own.at) or 0.0) - (read_at(arm_run, own.at) or 0.0)
                for arm_run, run, _ in both
                if own.at <= run.step
            ]
            if is_confirmed(own, behind, compared.versus.level, maximize):
                claimable = (ITEMS, FLOPS)
    times = [
        tuple(find_time(_cut(run, run.step), target, maximize) if run else None for run in (pair.own, pair.other))
        for pair in pairs
    ]
    return _summarise(pairs, reach, ours, shares, claimable, target, times)


def _maximizes(record: SweepRecord) -> bool:
    return record.spec.objective.direction == "maximize"


def _find_reach(
    record: SweepRecord, compared: Compared, curves: Sequence[Curve], goals: Sequence[float]
) -> Reach | None:
    resolution = find_resolution(record.spec.objective.metric, record.score_items, record.validation_items)
    level, least = compared.versus.level if compared.versus else 0.0, least_sd_of_difference(resolution)
    return find_reach(curves, goals, level, maximize=_maximizes(record), least_sd=least)


def _find_shares(
    record: SweepRecord,
    compared: Compared,
    both: Sequence[tuple[Run, Run, float]],
    reach: Reach,
    ends: Sequence[float],
) -> dict[str, Share]:
    """Return axis -> the cost of the arm until `reach` over that of the baseline until its `ends`."""
    shares = {}
    for axis in AXES:
        if axis == SECONDS and refuse_seconds(record):
            continue
        whole = [find_cost(other, end, axis) for (_, other, _), end in zip(both, ends, strict=True)]
        if any(find_cost(own, 1, axis) is None for own, _, _ in both) or not all(whole):
            continue
        if axis == SECONDS:
            shares[axis] = _bound_seconds(compared, both, reach, [cost or 0.0 for cost in whole])
            continue
        own, base = both[0][0], whole[0] or 1.0  # by formula: the same for all seeds

        def divide(updates: float | None, own: Run = own, base: float = base, axis: str = axis) -> float | None:
            return None if updates is None else (find_cost(own, updates, axis) or 0.0) / base

        shares[axis] = Share(divide(reach.at), divide(reach.low) or 0.0 if reach.low else 0.0, divide(reach.high))
    return shares


def _bound_seconds(
    compared: Compared, both: Sequence[tuple[Run, Run, float]], reach: Reach, whole: Sequence[float]
) -> Share:
    """Return the seconds of the arm until `reach` over those of the baseline: its updates until then, times the ratio
    of the seconds of an update of the arm to the `whole` of the baseline, each with its own interval."""
    ratios = [
        math.log((find_cost(own, 1, SECONDS) or 0.0) / cost) for (own, _, _), cost in zip(both, whole, strict=True)
    ]
    found = bound_mean(ratios, compared.versus.level if compared.versus else 0.0)
    half = found.half_width or 0.0
    each, low, high = (math.exp(found.mean + part) for part in (0.0, -half, half))
    known = found.half_width is not None or found.sd == 0
    return Share(
        None if reach.at is None else reach.at * each,
        reach.low * low if known else 0.0,
        reach.high * high if known and reach.high is not None else None,
    )


def _find_seconds(
    record: SweepRecord, compared: Compared, both: Sequence[tuple[Run, Run, float]], curves: Sequence[Curve]
) -> Share | None:
    """Return the share of the seconds, from curves against seconds that end at equal ones."""
    budget = find_budget(record)
    if budget is None:
        return None
    timed = [
        {(find_cost(own, updates, SECONDS) or 0.0) / budget: value for updates, value in curve.items()}
        for (own, _, _), curve in zip(both, curves, strict=True)
    ]
    places = [place for place in sorted(timed[0]) if place < 1 and all(min(one) <= place for one in timed)]
    common = [{**{place: _interpolate(one, place) for place in places}, 1.0: one[max(one)]} for one in timed]
    reach = _find_reach(record, compared, common, [value for _, _, value in both])
    return Share(reach.at, reach.low, reach.high) if reach else None


def _interpolate(curve: Curve, place: float) -> float:
    """Return the value of a curve that begins before `place` and ends after it."""
    left, right = max(x for x in curve if x <= place), min(x for x in curve if x >= place)
    if left == right:
        return curve[left]
    return curve[left] + (curve[right] - curve[left]) * (place - left) / (right - left)


def _summarise(
    pairs: Sequence[_Pair],
    reach: Reach | None,
    curves: Sequence[Curve],
    shares: dict[str, Share],
    claimable: Sequence[str],
    goal: float | None,
    times: Sequence[tuple[float | None, ...]],
) -> Speed:
    """Return the speed of an arm. `times`: for each seed, the updates after which the arm and the baseline reach the
    goal; None: never, or it failed."""
    lowest, highest = list[float](), list[float]()
    for pair, (own, other) in zip(pairs, times, strict=True):
        if own is None and other is None:  # neither does, and which would be first is unknown
            ends = 0.0, math.inf
        elif own is None or pair.own is None:
            ends = math.inf, math.inf
        else:
            whole = find_cost(pair.other, other, ITEMS) if pair.other and other else None
            share = (find_cost(pair.own, own, ITEMS) or 0.0) / whole if whole else 0.0
            ends = share, share
        lowest.append(ends[0])
        highest.append(ends[1])
    return Speed(
        goal,
        seeds=len(pairs),
        pairs=len(curves),
        reached=sum(own is not None for own, _ in times),
        failed=sum(pair.own is None for pair in pairs),
        other_failed=sum(pair.other is None for pair in pairs),
        validations=min((len(curve) for curve in curves), default=0),
        updates=reach,
        shares=shares,
        claimed=tuple(axis for axis, share in shares.items() if axis in claimable and share.is_faster),
        median=bound_median(lowest, highest) if reach else None,
    )
