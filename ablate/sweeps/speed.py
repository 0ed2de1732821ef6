"""How soon each arm reaches the final objective of its baseline, and the target of the file, in tokens or images, FLOPs
and seconds. Nothing here accesses a storage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from ablate.sweeps.comparison import collect_outcomes, compare_record, measure_resolution
from ablate.sweeps.records import SweepRecord, compute_once
from ablate.sweeps.runs import Run
from ablate.verdict.comparison import Compared, FreshOutcomes
from ablate.verdict.intervals import bound_mean, least_sd_of_difference
from ablate.verdict.speed import (
    Curve,
    Median,
    Reach,
    Share,
    bound_median,
    find_reach,
    find_time,
    is_behind,
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
    return _compare_all(record, None) if record.spec.is_own else {}


def compare_times(record: SweepRecord) -> dict[str, Speed]:
    """Return arm -> how soon it reaches the target of the file, relative to its baseline; empty without one, and before
    there is a verdict. That it does so sooner is one comparison of the family."""
    return {} if record.spec.target is None else _compare_all(record, record.spec.target)


@compute_once
def _compare_all(record: SweepRecord, target: float | None) -> dict[str, Speed]:
    outcomes = collect_outcomes(record)
    paired = {arm: (one, _list_pairs(record, outcomes, arm, one)) for arm, one in compare_record(record).items()}
    return {arm: _compare(record, one, pairs, target) for arm, (one, pairs) in paired.items() if pairs}


def _list_pairs(
    record: SweepRecord, outcomes: Mapping[str, FreshOutcomes], arm: str, compared: Compared
) -> list[_Pair]:
    """Return the trainings of an arm and its baseline up to the last look; none of an arm that is not compared."""
    baseline = record.spec.baselines[arm]
    if arm == baseline or compared.versus is None:
        return []
    own, other = ({run.seed: run for run in record.fresh(name)} for name in (arm, baseline))
    ended, base = outcomes[arm].outcomes, outcomes[baseline].outcomes
    return [
        _Pair(
            own[seed] if ended[seed].trained else None,
            other[seed] if base[seed].trained else None,
            base[seed].value or 0.0,
        )
        for seed in [seed for seed in ended if seed in base][: compared.looks.sizes[-1] if compared.looks else None]
    ]


def _find_end(record: SweepRecord, run: Run) -> float:
    """Return the updates of `run` at which it is compared: its last, or those at equal cost."""
    budget = find_budget(record)
    return run.step if budget is None else min(find_updates(run, budget, record.spec.compare.at), run.step)


def _compare(record: SweepRecord, compared: Compared, pairs: Sequence[_Pair], target: float | None) -> Speed:
    """Return how soon an arm reaches the target, relative to its baseline; None: what its baseline ends at."""
    at, maximize = record.spec.compare.at, record.spec.objective.direction == "maximize"
    both = [(pair.own, pair.other, pair.value) for pair in pairs if pair.own and pair.other]

    def cut(run: Run) -> dict[float, float]:
        """Return updates -> objective of `run` at its validations up to where it is compared, and there."""
        end = _find_end(record, run) if target is None else run.step
        curve: dict[float, float] = {step: value for step, value in run.curve.items() if step < end}
        value = read_at(run, end)
        return curve if value is None else {**curve, end: value}

    curves, claimable = [cut(own) for own, _, _ in both], tuple[str, ...]()
    if target is None:
        reach = _find_reach(record, compared, curves, [value for _, _, value in both])
        shares = _find_shares(record, compared, both, reach, [_find_end(record, other) for _, other, _ in both])
        if reach and at == SECONDS and SECONDS in shares:  # the test is repeated along seconds
            shares[SECONDS] = _find_seconds(record, compared, both, curves) or shares[SECONDS]
        if compared.kind == "better":
            claimable = (SECONDS,) if at == SECONDS else (ITEMS, FLOPS)
    else:
        theirs = [cut(other) for _, other, _ in both]
        reach, other = (find_reach(each, [target] * len(both), 0.0, maximize=maximize) for each in (curves, theirs))
        if reach and _is_ahead(compared, both, reach.at, maximize):
            claimable = (ITEMS, FLOPS)
        shares = {}
        if other and other.at is not None:
            goals = [read_at(run, other.at) or 0.0 for _, run, _ in both]
            reach = _find_reach(record, compared, curves, goals)
            shares = _find_shares(record, compared, both, reach, [other.at] * len(both))
    times: list[tuple[float | None, float | None]] = []
    for pair in pairs:
        own_time = find_time(cut(pair.own), pair.value if target is None else target, maximize) if pair.own else None
        other_time = None
        if pair.other:
            other_time = (
                _find_end(record, pair.other) if target is None else find_time(cut(pair.other), target, maximize)
            )
        times.append((own_time, other_time))
    return Speed(
        target,
        seeds=len(pairs),
        pairs=len(both),
        reached=sum(own is not None for own, _ in times),
        failed=sum(pair.own is None for pair in pairs),
        other_failed=sum(pair.other is None for pair in pairs),
        validations=min(map(len, curves), default=0),
        updates=reach,
        shares=shares,
        claimed=tuple(axis for axis, share in shares.items() if axis in claimable and share.is_faster),
        median=_find_median(pairs, times) if reach else None,
    )


def _find_median(pairs: Sequence[_Pair], times: Sequence[tuple[float | None, float | None]]) -> Median | None:
    """Return the median over seeds of the share of tokens. `times`: for each, the updates after which the arm and the
    baseline reach the goal; None: never, or it failed."""
    ends = []
    for pair, (own, other) in zip(pairs, times, strict=True):
        if own is None and other is None:  # neither does, and which would be first is unknown
            ends.append((0.0, math.inf))
        elif own is None or pair.own is None:
            ends.append((math.inf, math.inf))
        else:
            whole = find_cost(pair.other, other, ITEMS) if pair.other and other else None
            ends.append(((find_cost(pair.own, own, ITEMS) or 0.0) / whole if whole else 0.0,) * 2)
    return bound_median([low for low, _ in ends], [high for _, high in ends])


def _is_ahead(compared: Compared, both: Sequence[tuple[Run, Run, float]], at: float | None, maximize: bool) -> bool:
    """Return whether the baseline is shown to be behind where the arm reaches the target, and the arm failed on no more
    seeds."""
    v = compared.versus
    if at is None or v is None or v.failed > v.other_failed:
        return False
    there = [(read_at(other, at) or 0.0, read_at(own, at) or 0.0) for own, other, _ in both if at <= other.step]
    return is_behind([theirs - ours for theirs, ours in there], v.level, maximize)


def _find_reach(
    record: SweepRecord, compared: Compared, curves: Sequence[Curve], goals: Sequence[float]
) -> Reach | None:
    level, least = compared.versus.level if compared.versus else 0.0, least_sd_of_difference(measure_resolution(record))
    return find_reach(curves, goals, level, maximize=record.spec.objective.direction == "maximize", least_sd=least)


def _find_shares(
    record: SweepRecord,
    compared: Compared,
    both: Sequence[tuple[Run, Run, float]],
    reach: Reach | None,
    ends: Sequence[float],
) -> dict[str, Share]:
    """Return axis -> the cost of the arm until `reach` over that of the baseline until its `ends`."""
    shares: dict[str, Share] = {}
    if reach is None:
        return shares
    for axis in AXES:
        if axis == SECONDS and refuse_seconds(record):
            continue
        whole = [find_cost(other, end, axis) or 0.0 for (_, other, _), end in zip(both, ends, strict=True)]
        if any(find_cost(own, 1, axis) is None for own, _, _ in both) or not all(whole):
            continue
        if axis == SECONDS:
            shares[axis] = _bound_seconds(compared, both, reach, whole)
            continue
        own = both[0][0]  # by formula: the same for all seeds
        value, low, high = (
            None if updates is None else (find_cost(own, updates, axis) or 0.0) / whole[0]
            for updates in (reach.at, reach.low or None, reach.high)
        )
        shares[axis] = Share(value, low or 0.0, high)
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
    places = [(find_cost(both[0][0], updates, SECONDS) or 0.0) / budget for updates in curves[0]]
    timed: list[dict[float, float]] = [{} for _ in both]
    for curve, (own, _, _) in zip(timed, both, strict=True):
        for place in places:
            value = read_at(own, min(find_updates(own, place * budget, SECONDS), own.step))
            if value is not None:
                curve[place] = value
    reach = _find_reach(record, compared, timed, [value for _, _, value in both])
    return Share(reach.at, reach.low, reach.high) if reach else None
