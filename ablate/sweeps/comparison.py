"""The claims of a sweep, and the runs that they need: the compared candidates, and the number of fresh seeds of each
arm. Nothing here accesses a storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ablate.experiment.metrics import find_resolution
from ablate.sweeps.budgets import read_outcomes
from ablate.sweeps.challenges import build_valley, find_try
from ablate.sweeps.records import SweepRecord, compute_once, count_remaining
from ablate.sweeps.runs import EXTENSION, FRESH, SEARCH, Run, Runs
from ablate.sweeps.search.rungs import rank_reached, read_standings
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict import comparison
from ablate.verdict.comparison import Claim, Compared, FreshOutcomes
from ablate.verdict.effects import Effect, compare_cells
from ablate.verdict.looks import Looks


@dataclass(frozen=True)
class Round:
    """The runs on fresh seeds that are needed before the next look."""

    seeds: dict[str, int]
    """Arm -> seeds of its chosen settings."""
    tries: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    """Arm -> the number and the values of further settings that are tried before anything is claimed of it; one arm
    tries at a time."""
    is_block: bool = False
    """Whether a seed counts once all of these arms have ended it."""


@compute_once
def compare_record(record: SweepRecord) -> dict[str, Compared]:
    """Return the comparison of each arm with the baseline, by the objective only. Empty if no fresh seeds are
    requested, or none was run yet."""
    spec = record.spec
    fresh = record.runs.select(stage=FRESH)
    if not spec.confirm.most_seeds and not fresh:
        return {}
    arms = collect_outcomes(record)
    if not fresh and any(one.found for one in arms.values()):
        return {}
    others = len(list_earlier_pairs(record)) + record.scored
    return compare_arms(spec, arms, measure_resolution(record), others)


def compare_record_effects(record: SweepRecord) -> dict[str, Effect]:
    """Return the effect of each contrast of a factorial; empty for other sweeps, where no fresh seeds are asked
    for, and where none was run yet."""
    if not record.spec.contrasts or not compare_record(record):
        return {}
    return compare_effects(record.spec, collect_outcomes(record), measure_resolution(record), record.scored)


def list_claims(record: SweepRecord) -> dict[str, Claim]:
    """Return the claims, by the name of the contrast or, where arms are compared with a baseline, of the arm."""
    return {**compare_record_effects(record)} or {**compare_record(record)}


def list_earlier_pairs(record: SweepRecord) -> list[tuple[str, str]]:
    """Return the pairs that were compared with another arm as the baseline, and no longer are."""
    now = {frozenset(pair) for pair in record.spec.baselines.items()}
    pairs = {frozenset((arm, base)) for arm, bases in record.against.items() for base in bases}
    return sorted((min(pair), max(pair)) for pair in pairs - now)


def compare_arms(
    spec: Sweep,
    arms: Mapping[str, FreshOutcomes],
    resolution: float = 0.0,
    others: int = 0,
) -> dict[str, Compared]:
    """Return the comparisons of `arms` in the sweep `spec`; for the cells of a factorial, the figures of each alone.
    `others`: further comparisons that share the error, besides these and those of the rest of the file."""
    rules = _list_rules(spec, resolution, others)
    compared = comparison.compare(arms, spec.baselines, **rules)
    return {arm: replace(one, kind="cell") for arm, one in compared.items()} if spec.contrasts else compared


def compare_effects(
    spec: Sweep,
    cells: Mapping[str, FreshOutcomes],
    resolution: float = 0.0,
    others: int = 0,
) -> dict[str, Effect]:
    """Return the effects of the contrasts of `spec`; empty if it is not a factorial. `others`: as above."""
    return compare_cells(spec.contrasts, cells, **_list_rules(spec, resolution, others))


def _list_rules(spec: Sweep, resolution: float, others: int) -> dict[str, Any]:
    """Return the arguments that both kinds of comparison share."""
    return {
        "planned": spec.confirm.most_seeds,
        "maximize": spec.objective.direction == "maximize",
        "effect": spec.confirm.effect,
        "resolution": resolution,
        "others": (spec.family or 0) + others + spec.count_timed(),
    }


def measure_resolution(record: SweepRecord) -> float:
    """Return 1/N of an objective that counts N items, such as accuracy; 0: it does not count."""
    return find_resolution(record.spec.objective.metric, record.score_items, record.validation_items)


def collect_outcomes(record: SweepRecord) -> dict[str, FreshOutcomes]:
    """Return the outcomes of each arm on fresh seeds."""
    arms = {}
    for arm in record.arms:
        fresh = record.fresh(arm)
        is_tested = fresh or arm in record.chosen or arm in record.spec.cells
        arms[arm] = FreshOutcomes(
            read_outcomes(record, fresh),
            record.find_settings(arm) if is_tested else {},
            record.looks.get(arm),
            found=not _has_no_settings(record, arm),
            find_valley=partial(build_valley, record, arm),
            pending=_is_pending(record, arm),
        )
    return arms


def _is_pending(record: SweepRecord, arm: str) -> bool:
    """Return whether the settings of `arm` were chosen anew, and seeds that were looked at are still to be run."""
    looks, fresh = record.looks.get(arm), record.fresh(arm)
    chosen_before = len(record.runs.select(arm, FRESH)) > len(fresh)
    return bool(chosen_before and looks and len(fresh.outcomes()) < looks.sizes[-1])


def _has_no_settings(record: SweepRecord, arm: str) -> bool:
    """Return whether the search of `arm` has ended without a completed trial."""
    trials = record.search(arm)
    if not trials or arm in record.chosen or record.best(arm) is not None:
        return False
    if trials.select(status=("running", "waiting", "interrupted", "failed")):
        return False
    return count_remaining(record.spec, arm, trials) == 0


# ------------------------------------------------------------------ candidates


def list_candidates(spec: Sweep, trials: Runs) -> list[tuple[Run, float]]:
    """Return the best completed trials of an arm that are compared on selection seeds, with different settings, the
    best first, and the objective that each has reached; with rungs also those that came to the last rung but one, after
    those beyond the ranges of the search."""
    if trials and (rungs := spec.plan_rungs(trials[0].arm)):
        by_number = {trial.number: trial for trial in trials}
        maximize = spec.objective.direction == "maximize"
        standings = read_standings(rungs, trials.select(stage=SEARCH))
        order = rank_reached(rungs, standings, maximize)
        found = [(by_number[number], standings[number].ended[-1].value or 0.0) for number in order]
        beyond = [(run, run.value) for run in trials.select(stage=EXTENSION) if run.value is not None]
        whole = {number for number in order if len(standings[number].ended) == len(rungs)}
        ended = sorted([*beyond, *(one for one in found if one[0].number in whole)], key=lambda one: one[1])
        rest = [one for one in found if one[0].number not in whole]
        return [*(ended[::-1] if maximize else ended), *rest][: spec.confirm.candidates]
    done = [trial for trial in trials if trial.value is not None]
    points = [(trial.params, trial.value or 0.0) for trial in done]
    return [(done[i], points[i][1]) for i in rank_candidates(spec, points)]


def rank_candidates(spec: Sweep, points: Sequence[tuple[Mapping[str, Any], float]]) -> list[int]:
    """Return the indices of the best of `points` (settings, objective), as many as there may be candidates."""
    sign = 1 if spec.objective.direction == "minimize" else -1
    best: dict[Any, int] = {}
    for i in sorted(range(len(points)), key=lambda i: (sign * points[i][1], i)):
        best.setdefault(tuple(sorted(points[i][0].items())), i)
        if len(best) == spec.confirm.candidates:
            break
    return list(best.values())


# ------------------------------------------------------------------ rounds of fresh seeds


@compute_once
def plan_record(record: SweepRecord) -> Round:
    """Return the runs on fresh seeds that are needed next in `record`, including those that ended, and what arms try;
    none for an arm whose settings are not chosen."""
    if not record.is_tested:
        return Round({})
    return _plan_block(record) if record.spec.contrasts else _plan_pairs(record)


def _plan_pairs(record: SweepRecord) -> Round:
    spec, compared = record.spec, compare_record(record)
    confirm, baselines = spec.confirm, spec.baselines
    chosen = [arm for arm in record.arms if arm in record.chosen]
    seeds: dict[str, int] = {}
    for arm in chosen:
        done = record.looks[arm].sizes[-1] if arm in record.looks else 0
        seeds[arm] = max(done, confirm.first_seeds)
        if arm == baselines[arm] or seeds[arm] > done or compared[arm].kind == "figures" or compared[arm].open:
            continue
        if confirm.is_sequential and baselines[arm] in chosen and not compared[arm].decided:
            seeds[arm] = max(done, min(done + 1, confirm.most_seeds))
    for baseline in {*baselines.values()}.intersection(chosen):
        seeds[baseline] = max(count for arm, count in seeds.items() if baselines[arm] == baseline)
    return Round(seeds, find_try(record, compared.values()))


def _plan_block(record: SweepRecord) -> Round:
    """Return the next round of a factorial: all of its cells on the same seeds, as a seed is a block of them."""
    confirm, effects = record.spec.confirm, compare_record_effects(record)
    chosen = [arm for arm in record.arms if arm in record.chosen]
    done = [record.looks[cell].sizes[-1] if cell in record.looks else 0 for cell in chosen]
    target = max([confirm.first_seeds, *done])
    tries = find_try(record, effects.values()) if all(count == target for count in done) else {}
    is_known = not any(effect.kind == "figures" or effect.open for effect in effects.values())
    is_decided = all(effect.decided for effect in effects.values())
    if all(count == target for count in done) and is_known and confirm.is_sequential and not is_decided:
        target = max(target, min(target + 1, confirm.most_seeds))
    return Round(dict.fromkeys(chosen, target), tries, is_block=True)


def find_due_looks(spec: Sweep, arms: Mapping[str, FreshOutcomes], wanted: Round) -> dict[str, Looks]:
    """Return the looks of each arm that has reached the seeds of the round, and of the baseline for its own; of the
    cells of a factorial once all have."""
    baselines, due = spec.baselines, {}
    block = [arms[arm] for arm in wanted.seeds] if wanted.is_block else []
    for arm, target in wanted.seeds.items():
        baseline = baselines[arm]
        base = arms.get(baseline)
        looks = arms[arm].looks
        if looks and target <= looks.sizes[-1]:
            continue
        tested = block or [arms[arm]]
        if arm != baseline and base is not None and base.found:
            tested.append(base)
        count = _count_in_order(spec, tested)
        if count >= target > 0:
            due[arm] = looks.add(count) if looks else Looks((count,), max(count, spec.confirm.most_seeds))
    return due


def _count_in_order(spec: Sweep, tested: Sequence[FreshOutcomes]) -> int:
    """Return on how many fresh seeds, from the first on and without a gap, all of `tested` have ended."""
    known = max(len(fresh.outcomes) for fresh in tested)
    seeds = spec.fresh_seeds(known)
    ended = (all(seed in fresh.outcomes for fresh in tested) for seed in seeds)
    return next((i for i, both in enumerate(ended) if not both), known)
