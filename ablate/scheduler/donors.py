"""The source runs and reward models of experiments: looking up `sweep:NAME/ARM` in the storage. A source run is looked
up when the arm's first trial starts, and recorded in the arm's study with the SHA-256 of its weights, so that all
trials of an arm start from the same model and use the same reward model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablate.config.errors import SweepError, did_you_mean
from ablate.config.formatting import join_words
from ablate.experiment.extensions import load_extension
from ablate.experiment.tree import Experiment
from ablate.scheduler.storage import read_sweep, read_sweep_from
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED
from ablate.sweeps.spec.references import PREFIX, WEIGHTS, list_references, parse_reference
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
    names = list_references(experiment)
    runs = {path: run for path, name in names.items() if (run := resolve_run(name, storage)) != name}
    return Experiment.from_mapping(experiment.to_tree(), runs) if runs else experiment


def pin_donors(experiment: Experiment, storage: BaseStorage, study: str) -> Experiment:
    """Return `experiment` with the runs that it starts from and is judged by, in the place of `sweep:NAME/ARM`, and
    the hashes of their weights, as noted in the `study` of the arm's search, or from now on noted there. Their
    checkpoints are kept.

    Raises SweepError where nothing can be started from yet.
    """
    changes: dict[str, Any] = {}
    study_id = storage.get_study_id_from_name(study) if list_references(experiment) else 0
    for path, name in list_references(experiment).items():
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
    return Experiment.from_mapping(experiment.to_tree(), changes) if changes else experiment


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
    start = record.spec.base(arm).warm_start
    name = (settings.params if settings else {}).get(WEIGHTS, start.donor if start else None)
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
