"""The claims of a sweep, and the runs that they need: the compared candidates, the number of fresh seeds of each arm,
and the crossed runs. Nothing here accesses a storage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablate.experiment.metrics import find_resolution
from ablate.sweeps.records import SweepRecord, count_remaining
from ablate.sweeps.runs import FRESH, Run, Runs
from ablate.sweeps.search.rungs import rank_reached, read_standings
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.validation import validate_experiment
from ablate.verdict import comparison
from ablate.verdict.comparison import Compared, CrossedRuns, FreshOutcomes
from ablate.verdict.effects import Effect, compare_cells
from ablate.verdict.looks import Looks


@dataclass(frozen=True)
class Round:
    """The runs on fresh seeds that are needed before the next look."""

    seeds: dict[str, int]
    """Arm -> seeds of its chosen settings."""
    crossed: dict[tuple[str, str], int]
    """(loser, winner) -> seeds of the loser at the winner's settings."""
    is_block: bool = False
    """Whether a seed counts once all of these arms have ended it."""


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
    return compare_arms(spec, arms, _list_crossed(record), _find_resolution(record), others)


def compare_record_effects(record: SweepRecord) -> dict[str, Effect]:
    """Return the effect of each contrast of a factorial; empty for other sweeps, where no fresh seeds are asked
    for, and where none was run yet."""
    if not record.spec.contrasts or not compare_record(record):
        return {}
    arms, crossed = collect_outcomes(record), _list_crossed(record)
    return compare_effects(record.spec, arms, crossed, _find_resolution(record), record.scored)


def _list_crossed(record: SweepRecord) -> CrossedRuns:
    return {pair: runs.outcomes() for pair, runs in record.runs.list_crossed().items()}


def list_earlier_pairs(record: SweepRecord) -> list[tuple[str, str]]:
    """Return the pairs that were compared with another arm as the baseline, and no longer are."""
    now = {frozenset(pair) for pair in record.spec.baselines.items()}
    pairs = {frozenset((arm, base)) for arm, bases in record.against.items() for base in bases}
    return sorted((min(pair), max(pair)) for pair in pairs - now)


def compare_arms(
    spec: Sweep,
    arms: Mapping[str, FreshOutcomes],
    crossed: CrossedRuns | None = None,
    resolution: float = 0.0,
    others: int = 0,
) -> dict[str, Compared]:
    """Return the comparisons of `arms` in the sweep `spec`; for the cells of a factorial, the figures of each alone.
    `others`: further comparisons that share the error, besides these and those of the rest of the file."""
    rules = _list_rules(spec, resolution, others)
    compared = comparison.compare(arms, spec.baselines, crossed=crossed, **rules)
    return {arm: replace(one, kind="cell") for arm, one in compared.items()} if spec.contrasts else compared


def compare_effects(
    spec: Sweep,
    cells: Mapping[str, FreshOutcomes],
    crossed: CrossedRuns,
    resolution: float = 0.0,
    others: int = 0,
) -> dict[str, Effect]:
    """Return the effects of the contrasts of `spec`; empty if it is not a factorial. `others`: as above."""
    return compare_cells(spec.contrasts, cells, crossed, **_list_rules(spec, resolution, others))


def _list_rules(spec: Sweep, resolution: float, others: int) -> dict[str, Any]:
    """Return the arguments that both kinds of comparison share."""
    return {
        "planned": spec.confirm.most_seeds,
        "maximize": spec.objective.direction == "maximize",
        "effect": spec.confirm.effect,
        "resolution": resolution,
        "shared": tuple(spec.search),
        "others": (spec.family or 0) + others,
    }


def _find_resolution(record: SweepRecord) -> float:
    return find_resolution(record.spec.objective.metric, record.score_items, record.validation_items)


def collect_outcomes(record: SweepRecord) -> dict[str, FreshOutcomes]:
    """Return the outcomes of each arm on fresh seeds."""
    arms = {}
    for arm in record.arms:
        fresh = record.fresh(arm)
        is_tested = fresh or arm in record.chosen or arm in record.spec.cells
        arms[arm] = FreshOutcomes(
            fresh.outcomes(),
            record.find_settings(arm) if is_tested else {},
            record.looks.get(arm),
            found=not _has_no_settings(record, arm),
        )
    return arms


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
    best first, and the objective that each has reached; with rungs also those that came to the last rung but one."""
    if trials and (rungs := spec.plan_rungs(trials[0].arm)):
        by_number = {trial.number: trial for trial in trials}
        maximize = spec.objective.direction == "maximize"
        standings = read_standings(rungs, trials)
        order = rank_reached(rungs, standings, maximize)[: spec.confirm.candidates]
        return [(by_number[number], standings[number].ended[-1].value or 0.0) for number in order]
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


def cross_params(spec: Sweep, loser: Mapping[str, Any], winner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the `loser` at the `winner`'s values of the searched parameters that all arms share."""
    return {**loser, **{path: winner[path] for path in spec.search if path in winner}}


# ------------------------------------------------------------------ rounds of fresh seeds


def plan_round(
    spec: Sweep,
    arms: Mapping[str, FreshOutcomes],
    chosen: Collection[str],
    compared: Mapping[str, Compared],
    can_cross: Callable[[str, str], bool] = lambda loser, winner: True,
    effects: Mapping[str, Effect] = {},
) -> Round:
    """Return the runs that are needed next, including those that ended.

    Args:
        spec: the sweep.
        arms: what is known of each arm.
        chosen: those whose settings are chosen.
        compared: their comparisons.
        can_cross: (loser, winner) -> whether the loser can be trained at the winner's settings.
        effects: those of the contrasts of a factorial.
    """
    if effects:
        return _plan_block(spec, arms, chosen, effects, can_cross)
    confirm, baselines = spec.confirm, spec.baselines
    seeds: dict[str, int] = {}
    crossed: dict[tuple[str, str], int] = {}
    for arm in chosen:
        looks, baseline = arms[arm].looks, baselines[arm]
        done = looks.sizes[-1] if looks else 0
        seeds[arm] = max(done, confirm.first_seeds)
        if arm == baseline or seeds[arm] > done:
            continue
        if wanted := [pair for pair in compared[arm].missing if can_cross(*pair)]:
            crossed |= dict.fromkeys(wanted, done)
        elif confirm.is_sequential and baseline in chosen and not compared[arm].decided:
            seeds[arm] = max(done, min(done + 1, confirm.most_seeds))
    for baseline in {*baselines.values()}.intersection(chosen):
        seeds[baseline] = max(count for arm, count in seeds.items() if baselines[arm] == baseline)
    return Round(seeds, crossed)


def _plan_block(
    spec: Sweep,
    cells: Mapping[str, FreshOutcomes],
    chosen: Collection[str],
    effects: Mapping[str, Effect],
    can_cross: Callable[[str, str], bool],
) -> Round:
    """Return the next round of a factorial: all of its cells on the same seeds, as a seed is a block of them."""
    done = [looks.sizes[-1] if (looks := cells[cell].looks) else 0 for cell in chosen]
    target = max([spec.confirm.first_seeds, *done])
    crossed: dict[tuple[str, str], int] = {}
    if all(count == target for count in done):
        wanted = [e.missing for e in effects.values() if all(can_cross(*pair) for pair in e.missing)]
        crossed = {pair: target for pairs in wanted for pair in pairs}
        if spec.confirm.is_sequential and not crossed and not all(effect.decided for effect in effects.values()):
            target = max(target, min(target + 1, spec.confirm.most_seeds))
    return Round(dict.fromkeys(chosen, target), crossed, is_block=True)


def plan_record(record: SweepRecord) -> Round:
    """Return the runs on fresh seeds that are needed next in `record`, including those that ended; none for an arm
    whose settings are not chosen."""
    if not record.is_tested:
        return Round({}, {})
    if "round" not in record.memo:

        def can_cross(loser: str, winner: str) -> bool:
            params = cross_params(record.spec, record.find_settings(loser), record.find_settings(winner))
            return not validate_experiment(*record.spec.layers(loser), params)

        arms = collect_outcomes(record)
        chosen = [arm for arm in arms if arm in record.chosen]
        compared, effects = compare_record(record), compare_record_effects(record)
        record.memo["round"] = plan_round(record.spec, arms, chosen, compared, can_cross, effects)
    found: Round = record.memo["round"]
    return found


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
