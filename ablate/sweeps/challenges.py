"""Further settings of an arm: beyond the ends of its ranges and, before it is told that it lost, wherever they may
still win. Nothing here accesses a storage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ablate.config.formatting import is_number
from ablate.sweeps.budgets import read_outcomes
from ablate.sweeps.records import SweepRecord, compute_once
from ablate.sweeps.runs import CHALLENGE, CHOOSING, EXTENSION, FINISHED, FRESH, Run
from ablate.sweeps.search.space import Range
from ablate.sweeps.search_edges import find_end, find_extent, name_edges
from ablate.sweeps.spec.validation import validate_experiment
from ablate.verdict.comparison import Claim
from ablate.verdict.outcomes import find_noise
from ablate.verdict.tails import find_far
from ablate.verdict.valley import NOTHING, Noise, Place, Rival, Valley, list_rivals

MOST_CHOICES = 2
"""New choices that challenges may lead to, for each arm."""
_APART = 1000.0  # steps between values that have no order
_LIMIT = 2.5  # standard errors within which a rival may win, when the next one to try is chosen


@compute_once
def build_valley(record: SweepRecord, arm: str) -> Valley:
    """Return what the other settings of `arm` promise, of the runs that chose those that are tested."""
    spec, settled = record.spec, record.settled(arm)
    if arm not in record.chosen or settled is None or not spec.space(arm):
        return NOTHING
    edge = name_edges(record, arm)
    if not spec.challenge.trials:
        return Valley(edge=edge)
    axes = spec.axes(arm)
    spans = [axes[path].span if path in axes else (0.0, 0.0) for path in spec.space(arm)]
    runs: dict[Place, list[Run]] = {}
    begun = {*_list_unfinished(record, arm)}  # part of a try says nothing: it may have ended while others did not
    for run in record.runs.select(arm, CHOOSING):
        if run.stage == CHALLENGE and run.number in begun:
            continue
        runs.setdefault(_place(record, arm, run.params, settled.params), []).append(run)
    placed = {place: read_outcomes(record, record.runs.replace(own)) for place, own in runs.items()}
    chosen = _place(record, arm, settled.params, settled.params)
    maximize = spec.objective.direction == "maximize"
    rivals = list_rivals(placed, chosen, spans, spec.choosing_seeds(arm), maximize, _measure_noise(record))
    tried = {run.number for run in record.runs.select(arm, CHALLENGE)}
    can_try = len(tried) < spec.challenge.trials and any(_list_untried(record, arm, rivals))
    return Valley(rivals, can_try or bool(begun), edge)


def _measure_noise(record: SweepRecord) -> Noise:
    """Return a run's own noise on fresh seeds: few runs choose settings, and their noise may be low by chance."""
    ended = [read_outcomes(record, record.fresh(arm)) for arm in record.chosen]
    ended = [own for own in ended if any(one.trained for one in own.values())]
    seeds = [seed for seed in ended[0] if all(seed in own and own[seed].trained for own in ended)] if ended else []
    rows = [[own[seed].value or 0.0 for seed in seeds] for own in ended]
    return Noise(find_noise(rows), float((len(rows) - 1) * (len(seeds) - 1)), find_far(rows))


def _list_untried(record: SweepRecord, arm: str, rivals: Iterable[Rival]) -> Iterator[tuple[Rival, dict[str, Any]]]:
    """Yield those of `rivals` that can be tried, with their settings, which are rounded."""
    chosen, known = record.find_settings(arm), _list_known(record, arm, rivals)
    for rival in rivals:
        if rival.tried or max(map(abs, rival.place)) >= _APART:
            continue
        params = find_params(record, arm, rival.place)
        if _place(record, arm, params, chosen) not in known:
            yield rival, params


def _list_known(record: SweepRecord, arm: str, rivals: Iterable[Rival]) -> set[Place]:
    """Return the places that `arm` need not try: that of its choice, and those that it tried."""
    chosen = record.find_settings(arm)
    tried = {_place(record, arm, run.params, chosen) for run in record.runs.select(arm, CHALLENGE)}
    return {_place(record, arm, chosen, chosen), *tried, *(rival.place for rival in rivals if rival.tried)}


def _list_unfinished(record: SweepRecord, arm: str) -> list[int]:
    """Return the numbers of the settings that `arm` is trying."""
    seeds, ended = {*record.spec.choosing_seeds(arm)}, dict[int, set[int]]()
    for run in record.runs.select(arm, CHALLENGE):
        ended.setdefault(run.number, set()).update([run.seed] if run.status in FINISHED else [])
    return [number for number, own in ended.items() if not seeds <= own]


def _place(record: SweepRecord, arm: str, params: Mapping[str, Any], chosen: Mapping[str, Any]) -> Place:
    """Return the place of settings on each searched parameter, in steps. Values without an order are far apart."""
    axes, place = record.spec.axes(arm), []
    for path in record.spec.space(arm):
        axis, value = axes.get(path), params.get(path)
        if axis and is_number(value) and is_number(chosen.get(path)):
            place.append(round(axis.place(value), 3))  # as a value that was rounded
        else:
            entry = record.spec.space(arm)[path]
            number = entry.index(value) if not isinstance(entry, Range) and value in entry else -1
            place.append(0.0 if value == chosen.get(path) else _APART * (2 + number))
    return tuple(place)


def find_params(record: SweepRecord, arm: str, place: Place) -> dict[str, Any]:
    """Return the settings of `arm` at a place, the inverse of `_place`: those of its choice, but for what differs."""
    params, axes = record.find_settings(arm), record.spec.axes(arm)
    for (path, entry), here in zip(record.spec.space(arm).items(), place, strict=True):
        if here >= _APART and not isinstance(entry, Range):
            params[path] = entry[round(here / _APART) - 2]
        elif path in axes and is_number(params.get(path)) and abs(here - axes[path].place(params[path])) > 1e-3:
            params[path] = axes[path].value(here)
    return params


def _find_next_number(record: SweepRecord, arm: str) -> int:
    """Return the number of further settings of `arm`."""
    return max((run.number for run in record.runs.select(arm)), default=-1) + 1


# ------------------------------------------------------------------ before an arm is told that it lost


def find_try(record: SweepRecord, claims: Iterable[Claim]) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return arm -> the number and the settings that are tried next; empty if none are. One arm tries at a time, to its
    end, since what it finds may settle the claims that others would be challenged for."""
    for arm in record.chosen:
        for number in _list_unfinished(record, arm):
            return {arm: (number, record.runs.select(arm, CHALLENGE, number=number)[0].params)}
    claims, counts = list(claims), Counter(run.arm for run in record.runs.select(stage=CHALLENGE))
    waiting = dict.fromkeys(arm for claim in claims for arm in claim.open)
    for arm in sorted(waiting, key=lambda arm: counts[arm]):
        for params in _propose(record, arm, claims):
            if not validate_experiment(*record.spec.layers(arm), params):
                return {arm: (_find_next_number(record, arm), params)}
    return {}


def _propose(record: SweepRecord, arm: str, claims: Iterable[Claim]) -> Iterator[dict[str, Any]]:
    """Yield settings that an arm may try, the most promising first: those of the winners, then those that endanger a
    claim most."""
    chosen, rivals = record.find_settings(arm), build_valley(record, arm).rivals
    here, known = _place(record, arm, chosen, chosen), _list_known(record, arm, rivals)
    pairs = [claim.challenge.arms for claim in claims if claim.challenge and arm in claim.open]
    for other in dict.fromkeys(other for arms in pairs if len(arms) == 2 for other in arms if other != arm):
        there = record.find_settings(other)
        params = {**chosen, **{path: there[path] for path in record.spec.search if path in there}}
        if _place(record, arm, params, chosen) not in known:
            yield params

    def rank(one: tuple[Rival, dict[str, Any]]) -> tuple[float, float, Place]:
        rival, _ = one
        away = sum(abs(a - b) for a, b in zip(rival.place, here, strict=True))
        return -rival.reach(_LIMIT), away, rival.place

    yield from (params for _, params in sorted(_list_untried(record, arm, rivals), key=rank))


def choose_again(record: SweepRecord, claims: Iterable[Claim]) -> dict[str, int]:
    """Return arm -> the number of the settings that are tested from now on, of arms that found better ones when they
    were challenged."""
    choices: dict[str, int] = {}
    if any(_list_unfinished(record, arm) for arm in record.chosen):
        return choices
    for arm in dict.fromkeys(arm for claim in claims if claim.challenge for arm in claim.challenge.unheld):
        tested = {run.number for run in record.runs.select(arm, FRESH)}
        if len(tested) > MOST_CHOICES:
            continue
        valley, chosen = build_valley(record, arm), record.find_settings(arm)
        numbers = {_place(record, arm, run.params, chosen): run.number for run in record.runs.select(arm, CHOOSING)}
        rivals = [rival for rival in valley.rivals if rival.tried and not rival.typical]
        new = [rival for rival in rivals if numbers[rival.place] not in tested]
        best = max(new, key=lambda rival: rival.gain, default=None)
        if best is not None and best.gain > (math.sqrt(best.variance) if valley.open else 0.0):
            choices[arm] = numbers[best.place]
    return choices


# ------------------------------------------------------------------ beyond the ends of the ranges


def list_extensions(
    record: SweepRecord, provisional: Mapping[str, Mapping[str, Any]], may_step: bool
) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return arm -> number and settings beyond an end of its ranges that are to be run: one step beyond an end at which
    some arm is best, for all arms that search the parameter. They take a step together, so that it does not matter
    which of their runs ends first.

    Args:
        record: of the sweep.
        provisional: arm -> the settings that are its best so far.
        may_step: whether a new step may be taken; else those that some arms have taken are ended.
    """
    taken = {arm: _count_steps(record, arm, params) for arm, params in provisional.items()}
    groups: list[tuple[str, str, list[str]]] = []
    for path, end in dict.fromkeys(one for own in taken.values() for one in own):
        arms = [arm for arm, own in taken.items() if (path, end) in own]
        groups += [(path, end, own) for own in ([arms] if path in record.spec.search else [[arm] for arm in arms])]
    # a step that some arms have taken is ended before another one is chosen
    for is_begun in (True, False) if may_step else (True,):
        for path, end, arms in groups:
            steps = {arm: taken[arm][path, end][0] for arm in arms}
            behind = [arm for arm in arms if steps[arm] < max(steps.values())]
            is_best = any(taken[arm][path, end][1] for arm in arms)
            these = behind if is_begun else arms if is_best else ()
            wanted = {arm: _step_beyond(record, arm, provisional[arm], path, end, steps[arm] + 1) for arm in these}
            if found := {arm: one for arm, one in wanted.items() if one}:
                return found
    return {}


def _count_steps(record: SweepRecord, arm: str, params: Mapping[str, Any]) -> dict[tuple[str, str], tuple[int, bool]]:
    """Return (path, end) -> the steps that `arm` has taken beyond that end, and whether it is best there."""
    counts: dict[tuple[str, str], tuple[int, bool]] = {}
    for path in record.spec.axes(arm):
        if is_number(params.get(path)):
            extent, best_at = find_extent(record, arm, path), find_end(record, arm, path, params[path])
            counts |= {(path, end): (n, best_at == end) for end, n in zip(("lower", "upper"), extent, strict=True)}
    return counts


def _step_beyond(
    record: SweepRecord, arm: str, params: Mapping[str, Any], path: str, end: str, steps: int
) -> tuple[int, dict[str, Any]] | None:
    """Return number and settings of `arm` so many steps beyond an end, of the run that was begun if there is one; None
    if it may not be extended so far."""
    axis = record.spec.axes(arm)[path]
    if steps > (axis.before if end == "lower" else axis.beyond):
        return None
    there = {**params, path: axis.value(-steps if end == "lower" else axis.length + steps)}
    for run in record.runs.select(arm, EXTENSION):
        if run.params.get(path) == there[path]:
            return run.number, run.params
    refused = validate_experiment(*record.spec.layers(arm), there)
    return None if refused else (_find_next_number(record, arm), there)
