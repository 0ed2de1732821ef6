"""`settings_from: SWEEP`: each arm takes over the settings that another sweep chose for it, and is tested on fresh
seeds without a search."""

from __future__ import annotations

from typing import Any

from ablate.config.errors import SweepError, did_you_mean
from ablate.config.formatting import join_words
from ablate.config.merging import iterate_leaves, merge
from ablate.experiment.tree import Experiment
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.parts import TakenOver
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import count_runs

Settings = dict[str, Any]
"""Dotted path -> value, of all that an arm searched."""


def take_over(spec: Sweep, url: str) -> Sweep:
    """Return `spec` with the settings that the sweep which it names, in the storage at `url`, chose for each arm, and
    without a search. A sweep that names none is returned unchanged.

    Raises SweepError where that sweep is unknown, has not ended, or has other arms, another objective or other searched
    parameters."""
    if not spec.settings_from or spec.taken_over:
        return spec
    try:
        record = read_sweep(spec.settings_from, url)
        chosen = _pick_settings(spec, record)
    except SweepError as error:
        raise SweepError(f"{spec.name} takes its settings from {spec.settings_from}. {error}") from None
    return apply_settings(spec, TakenOver(sweep=record.full_name, settings=chosen, seeds=_list_seeds(record)))


def apply_settings(spec: Sweep, taken: TakenOver) -> Sweep:
    """Return `spec` with each arm at the settings that were `taken` over, and without a search. Its fresh seeds begin
    above those on which the settings were chosen, where they would meet."""
    rest = {key: value for key, value in spec.to_tree().items() if key not in ("search", "fixed", "method", "budget")}
    kept = ("seeds", "effect", "sd", "sd_source")
    confirm = {field: value for field, value in rest["confirm"].items() if field in kept}
    arms = {
        name: merge(Experiment, merge(Experiment, {}, arm.settings), taken.settings[name])
        for name, arm in spec.own_arms.items()
    }
    if not {*spec.fresh_seeds()}.isdisjoint(taken.seeds):
        rest["experiment"] = {**rest["experiment"], "seed": max(taken.seeds)}
    changed = {"sampler": "grid", "pruner": "none", "arms": arms, "confirm": {**confirm, "at": "grid"}}
    return Sweep.from_tree({**rest, **changed, "taken_over": taken.model_dump()}, spec.name)


def _list_seeds(record: SweepRecord) -> list[int]:
    """Return the seeds on which settings were chosen in `record`, or in the sweep from which it took them over."""
    spec, taken = record.spec, record.spec.taken_over
    if taken:
        return taken.seeds
    if spec.cells:
        return spec.fresh_seeds()
    return sorted({*(spec.base(arm).seed for arm in spec.all_arms), *spec.selection_seeds()})


def _pick_settings(spec: Sweep, record: SweepRecord) -> dict[str, Settings]:
    """Return arm of `spec` -> the settings that the sweep in `record` chose for it."""
    own, theirs = spec.objective, record.spec.objective
    if (own.metric, own.direction) != (theirs.metric, theirs.direction):
        raise SweepError(
            f"The settings of {record.title} were chosen by {theirs.metric} ({theirs.direction}), and the objective "
            f"here is {own.metric} ({own.direction})."
        )
    known = list(record.spec.own_arms)
    if missing := [arm for arm in spec.own_arms if arm not in known]:
        hint = did_you_mean(missing[0], known)
        raise SweepError(f"{record.title} has no arm {join_words(missing, 'or')}. Its arms: {', '.join(known)}.{hint}")
    done, total = count_runs(record)
    if done < total:
        raise SweepError(f"{record.title} has ended {done} of {total} runs: run it to its end first.")
    chosen = {arm: _pick_settings_of_arm(record, arm) for arm in spec.own_arms}
    for arm, settings in chosen.items():
        _refuse_other_arm(spec, record, arm, settings)
    return chosen


def _pick_settings_of_arm(record: SweepRecord, arm: str) -> Settings:
    """Return the settings that were chosen for an arm: by its search, at the best point of its grid, or by the sweep
    from which it took them over itself."""
    taken = record.spec.taken_over
    before = taken.settings[arm] if taken else {}
    if record.spec.cells:
        cell = record.pick_point(arm)
        return {**before, **(record.spec.cells[cell].point if cell in record.spec.cells else {})}
    settled = record.settled(arm)
    if settled is None:
        raise SweepError(f"No trial of {arm} completed in {record.title}, so no settings were chosen for it.")
    return {**before, **settled.params}


def _refuse_other_arm(spec: Sweep, record: SweepRecord, arm: str, chosen: Settings) -> None:
    """Raise SweepError where an arm is another one here, or searches other parameters."""
    searched = list(spec.space(arm))
    if searched and {*searched} != {*chosen}:
        raise SweepError(
            f"{record.title} chose {join_words(chosen) or 'nothing'} for {arm}, and this file searches "
            f"{join_words(searched)}. Remove the search, or make it the same."
        )
    here, there = (
        dict(iterate_leaves(merge(Experiment, {}, one.own_arms[arm].settings))) for one in (spec, record.spec)
    )
    if both := [path for path in here if path in chosen and path not in searched]:
        raise SweepError(
            f"{record.title} chose {join_words(both)} for {arm}, which this file sets itself. Remove it here."
        )
    for path in dict.fromkeys([*here, *there]):
        if path not in chosen and here.get(path) != there.get(path):
            values = f"{path} {here.get(path, '(not set)')}, and {there.get(path, '(not set)')} in {record.title}"
            raise SweepError(f"The arm {arm} has {values}: settings are taken over by the same arm alone.")
