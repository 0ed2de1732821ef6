"""Settings and models that a sweep takes from others: the settings that one chose (`settings_from`), and the source
runs and reward models of experiments, `sweep:NAME/ARM`. A source run is looked up when the arm's first trial starts,
and recorded in the arm's study with the SHA-256 of its weights, so that all trials of an arm start from the same model
and use the same reward model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablate.config.errors import SweepError, did_you_mean
from ablate.config.formatting import join_words
from ablate.config.merging import iterate_leaves
from ablate.experiment.extensions import load_extension
from ablate.experiment.trainable import Trainable
from ablate.experiment.tree import WEIGHTS, Experiment
from ablate.scheduler.storage import read_sweep, read_sweep_from
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED
from ablate.sweeps.spec.parts import TakenOver
from ablate.sweeps.spec.references import PREFIX, parse_reference
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import count_runs
from ablate.training.runs import keep_checkpoint

if TYPE_CHECKING:
    from optuna.storages import BaseStorage


_NOTE = "donors"  # of a study: reference -> run and SHA-256, as fields of the part that names it


def resolve_run(name: str, storage: str | None = None) -> str:
    """Return the run that `sweep:NAME/ARM` names: the run of the trial that represents the arm and keeps its checkpoint
    (the one chosen for the test, otherwise the best). NAME@GENERATION names an earlier generation. A `name` that does
    not begin with `sweep:` is returned unchanged. Raises SweepError for an unknown sweep or arm, and if no trial of the
    arm is completed.
    """
    if (reference := parse_reference(name)) is None:
        return name
    return find_settled_run(name, read_sweep(reference.sweep, storage), reference.arm)


def find_settled_run(name: str, sweep: SweepRecord, arm: str) -> str:
    """Return the run of the trial that represents an arm of `sweep`; for an arm that was tested at every point of a
    grid, the run of its best point. Raises SweepError, which begins with `name`."""
    settled = sweep.settled(find_arm(name, sweep, arm))
    if settled is None or settled.run_id is None:
        raise SweepError(f"{name}: no trial of the arm is completed. Run the sweep first.")
    return settled.run_id


def find_arm(name: str, sweep: SweepRecord, arm: str) -> str:
    """Return an arm of `sweep`; for one that was tested at every point of a grid, that at its best point. Raises
    SweepError, which begins with `name`, for an unknown one."""
    arm = sweep.pick_point(arm)
    if arm not in sweep.arms:
        arms = list(dict.fromkeys([*(sweep.spec.own_arms if sweep.spec.cells else ()), *sweep.arms]))
        raise SweepError(f"{name}: {sweep.title} has the arms {', '.join(arms)}.{did_you_mean(arm, arms)}")
    return arm


def resolve_donors(experiment: Experiment, storage: str | None = None) -> Experiment:
    """Return `experiment` with each `sweep:NAME/ARM` of a source run or reward model replaced by the run, so that its
    record identifies the weights. Raises SweepError."""
    names = experiment.list_references()
    runs = {path: run for path, name in names.items() if (run := resolve_run(name, storage)) != name}
    return Experiment.from_mapping(experiment.to_tree(), runs) if runs else experiment


def pin_donors(experiment: Trainable, storage: BaseStorage, study: str) -> Trainable:
    """Return `experiment` with the runs that it starts from and is judged by, instead of `sweep:NAME/ARM`, and the
    hashes of their weights: those noted in the `study` of the arm's search or, if there are none yet, those that are
    noted there now. Their checkpoints are kept.

    Raises SweepError if there is nothing to start from yet.
    """
    changes: dict[str, Any] = {}
    names = experiment.list_references()
    study_id = storage.get_study_id_from_name(study) if names else 0
    for path, name in names.items():
        if (reference := parse_reference(name)) is None:
            continue
        noted: dict[str, Any] = dict(storage.get_study_user_attrs(study_id).get(_NOTE, {}))
        key = f"{path} {name}"
        if key not in noted:
            title = study.partition("/")[0]  # the sweep with its generation
            own = reference.sweep in ("", title.rpartition("@")[0])
            noted[key] = _look_up(path, title if own else reference.sweep, reference.arm, storage)
            storage.set_study_user_attr(study_id, _NOTE, noted)
        part = path.partition(".")[0]
        changes |= {f"{part}.{field}": value for field, value in noted[key].items()}
    return type(experiment).from_mapping(experiment.to_tree(), changes) if changes else experiment


def _look_up(path: str, title: str, arm: str, storage: BaseStorage) -> dict[str, Any]:
    """Return the model of an arm, as the fields that are written at `path` and beside it."""
    name = f"{PREFIX}{title}/{arm}"
    try:
        sweep = read_sweep_from(storage, title)
        run = find_settled_run(name, sweep, arm)
    except SweepError as error:
        raise SweepError(f"Trials start from {name}, which does not exist yet. {error}") from None
    arm = sweep.pick_point(arm)
    if sweep.spec.cells and sweep.fresh(arm).finished < sweep.spec.confirm.first_seeds:
        raise SweepError(f"Trials start from {name}, whose fresh seeds have not ended: run that sweep first.")
    counts = sweep.search(arm).count_statuses()
    missing = sweep.target(arm) - sum(counts[status] for status in (*FINISHED, "failed"))
    if missing > 0 or counts["running"]:
        raise SweepError(f"Trials start from {name}, whose search has not ended: run that sweep first.")
    keep_checkpoint(run)
    part, _, field = path.partition(".")
    return {field: run, **load_extension(part).describe_source(run)}


def describe_shared_start(record: SweepRecord, arm: str) -> str | None:
    """Return the model that all fresh seeds of `arm` start from, such as 'stage-1 model (sweep:small/pre)'; None if
    each seed draws all of its weights. Seeds with a common start are not independent: their variance does not include
    the variance of the start."""
    settings = record.settled(arm)
    named = record.spec.base(arm).list_references().get(WEIGHTS)
    name = (settings.params if settings else {}).get(WEIGHTS, named)
    if name is None:
        return None
    reference = parse_reference(name)
    if reference is None:
        return f"source run ({name})"
    own = reference.sweep in ("", record.spec.name)
    return f"stage-1 model ({PREFIX}{record.title if own else reference.sweep}/{reference.arm})"


def state_shared_starts(record: SweepRecord) -> str:
    """Return the sentence that says which arms have seeds that share a start; '' if there are none."""
    starts = {arm: start for arm in record.arms if (start := describe_shared_start(record, arm))}
    if not starts:
        return ""
    told = join_words(f"all seeds of {arm} one {start}" for arm, start in starts.items())
    return (
        f"Seeds share a start, {told}: the intervals do not include the variance of these models, and the results hold "
        "only for them."
    )


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
    arms = {name: spec.kind.merge(arm.settings, taken.settings[name]) for name, arm in spec.own_arms.items()}
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
    """Raise SweepError if an arm differs here, or searches other parameters."""
    searched = list(spec.space(arm))
    if searched and {*searched} != {*chosen}:
        raise SweepError(
            f"{record.title} chose {join_words(chosen) or 'nothing'} for {arm}, and this file searches "
            f"{join_words(searched)}. Remove the search, or make it the same."
        )
    here, there = (dict(iterate_leaves(spec.kind.merge(one.own_arms[arm].settings))) for one in (spec, record.spec))
    if both := [path for path in here if path in chosen and path not in searched]:
        raise SweepError(
            f"{record.title} chose {join_words(both)} for {arm}, which this file sets itself. Remove it here."
        )
    for path in dict.fromkeys([*here, *there]):
        if path not in chosen and here.get(path) != there.get(path):
            values = f"{path} {here.get(path, '(not set)')}, and {there.get(path, '(not set)')} in {record.title}"
            raise SweepError(f"The arm {arm} has {values}: settings are taken over by the same arm alone.")
