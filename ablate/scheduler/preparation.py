"""Preparation of a sweep: finding errors that would fail every trial, and opening or resuming the studies of its
arms."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import ConfigError, Problem, SweepError
from ablate.config.formatting import count_noun
from ablate.config.merging import iterate_leaves
from ablate.distributed import ranks
from ablate.estimate.inputs import build_skeleton
from ablate.experiment.extensions import load_extensions
from ablate.experiment.metrics import is_score, list_metrics, list_parts
from ablate.scheduler.devices import share_cores
from ablate.scheduler.donors import pin_donors, take_over
from ablate.scheduler.queue import Queue
from ablate.scheduler.storage import (
    do_locked,
    list_generations,
    open_storage,
    read_generation,
    read_sweep_from,
    translate_storage_errors,
)
from ablate.scheduler.studies import create_study, read_seed_tables
from ablate.sweeps.records import SweepRecord, format_title
from ablate.sweeps.seeds import draw_seeds
from ablate.sweeps.spec.metrics_validation import describe_unknown
from ablate.sweeps.spec.references import find_own_donor, list_references, parse_reference
from ablate.sweeps.spec.speed_validation import check_reachable
from ablate.sweeps.spec.sweep import Sweep
from ablate.tracking import provenance, remote_files
from ablate.tracking.provenance import log_facts, pick_shown
from ablate.training.named import check_named
from ablate.training.runs import fingerprint_inputs, list_changed_inputs, shorten_settings
from ablate.training.train import check_corpus, choose_procedure
from ablate.training.trainer import check_ranks

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage

    from ablate.data import Corpus, DataConfig
    from ablate.experiment.tree import Experiment
    from ablate.models import ModelConfig
    from ablate.tasks import Task


logger = logging.getLogger(__name__)

# parts of a sweep file that may change while its studies go on
_CHANGEABLE = ("budget", "confirm", "baseline", "published", "checkpoints", "factor", "confounds", "family")
# say what other settings are, which are compared themselves
_NOTES = ("scale.changed", "taken_over.", "spent.")
_GROWS = "challenge.trials"  # as the seeds: an arm may try more, which is for the arms that are behind


def check_sweep(spec: Sweep) -> dict[DataConfig, Corpus]:
    """Return the data of all arms. Finds errors before the first trial that would fail all trials: data, the name of
    the objective, and source runs. Raises AblateError."""
    corpora: dict[DataConfig, Corpus] = {}
    trivial: dict[str, float | None] = {}
    for arm in spec.all_arms:
        base = spec.base(arm)
        if problems := check_objective(spec.objective.metric, base):
            raise ConfigError(problems, f"sweep {spec.name}")
        searched = [(path, value) for path, values in spec.corners(arm).items() for value in values]
        for trained in [base, *(spec.at(arm, {p: value}) for p, value in searched if p.startswith("trainer."))]:
            check_ranks(trained.trainer, f"sweep {spec.name}")
            if problems := check_named(trained):
                raise ConfigError(problems, f"sweep {spec.name}")
            if trained.trainer.copy_to:
                remote_files.check_url(trained.trainer.copy_to)
        for data in _list_data(spec, arm):
            if data not in corpora:
                corpora[data] = data.load(tracking.cache_folder())
        check_corpus(base, corpora[base.data])
        build_skeleton(base, corpora[base.data].classes, corpora[base.data].shape)
        if spec.target is not None:
            validated = corpora[base.data].limit_validation(base.validation.samples)
            trivial[arm] = base.task.measure_trivial_loss(validated, base.model)
    if problems := list(check_reachable(spec, trivial)):
        raise ConfigError(problems, f"sweep {spec.name}")
    return corpora


def check_workers(spec: Sweep, workers: int) -> None:
    """Raise ConfigError if so many workers keep runs from training alone, whose seconds are compared."""
    if spec.compare.at == "seconds" and workers > 1:
        text = "seconds are compared between runs that trained alone: use one worker, or another compare.at"
        raise ConfigError([Problem("--workers", text, workers)], f"sweep {spec.name}")


def fingerprint_sweep(spec: Sweep, corpora: Mapping[DataConfig, Corpus]) -> dict[str, str]:
    """Return input -> SHA-256, for the inputs of the arms of `spec` besides their settings. Raises AblateError if
    weights that they start from are missing or do not fit; those of sweeps are looked up later."""
    inputs: dict[str, str] = {}
    for arm in spec.all_arms:
        base = spec.base(arm)
        if not _starts_from_sweep(base):
            base = choose_procedure(base).pin(base, corpora[base.data])
        for data in _list_data(spec, arm):
            inputs |= fingerprint_inputs(base.model_copy(update={"data": data}), corpora[data])
    return inputs


def _list_data(spec: Sweep, arm: str) -> list[DataConfig]:
    """Return the data of `arm`, and those that it searches."""
    searched = [{path: value} for path, values in spec.corners(arm).items() for value in values]
    return [
        spec.base(arm).data,
        *(spec.at(arm, point).data for point in searched if next(iter(point)).startswith("data.")),
    ]


def check_objective(metric: str, experiment: Experiment) -> list[Problem]:
    """Return the problem if runs of `experiment` do not report `metric`, or a part of it. Raises AblateError if
    downstream tasks cannot be loaded, which is tried only if the metric may be a score of one."""
    known = list_metrics(experiment)
    if not {*list_parts(metric)} <= {*known}:
        known += count_score_items(experiment)
    missing = [part for part in list_parts(metric) if part not in known]
    if not missing:
        return []
    text = describe_unknown(metric, missing, [*known])
    if any(map(is_score, missing)):
        tasks = ", ".join(experiment.evaluation.tasks) or "none"
        text += f" Scores eval/TASK/NAME are those of evaluation.tasks: {tasks}."
    return [Problem("objective.metric", text, metric)]


def count_score_items(experiment: Experiment) -> dict[str, int]:
    """Return score on a downstream task -> its questions, of the tasks that runs of `experiment` are scored on in
    training. Raises AblateError if one of them cannot be loaded."""
    items: dict[str, int] = {}
    for extension in load_extensions(experiment):
        items |= extension.count_items(experiment)
    return items


def _starts_from_sweep(experiment: Experiment) -> bool:
    """Return whether the source run or reward model of `experiment` is looked up in the storage."""
    return any(parse_reference(name) for name in list_references(experiment).values())


def open_sweep(spec: Sweep, url: str, fresh: bool, threads: int | None) -> tuple[Queue, int]:
    """Return the runs of the sweep in the storage at `url`, and the threads of a trial: `threads`, unless the sweep
    started with another number; 0 if neither is set. Raises errors that would fail every trial: ConfigError, DataError,
    StoreError, SweepError for a changed file.
    """
    corpora = check_sweep(spec)
    inputs = fingerprint_sweep(spec, corpora)
    tracking.client()
    storage = open_storage(url)

    def open_all() -> tuple[Queue, int]:
        generation, drawn = pick_generation(spec, storage, fresh, inputs)  # which another may begin just now
        queue = Queue(storage, spec.name, generation, drawn)
        open_arms(queue, corpora)
        for arm in spec.all_arms:
            queue.note_inputs(arm, inputs)
            queue.note_studies(arm, [f"{queue.prefix}{other}" for other in spec.all_arms])
        check_donors(queue, corpora)
        return queue, pick_threads(queue, threads) if threads else 0

    with translate_storage_errors(url):
        return do_locked(storage, open_all)


def pick_generation(spec: Sweep, storage: BaseStorage, fresh: bool, inputs: Mapping[str, str]) -> tuple[int, Sweep]:
    """Return the generation to begin or to continue, and the sweep with the seeds that are its own. The comparisons of
    other sizes with which it shared its error stay, also those that are no longer in the file.

    Raises SweepError if the sweep file of a generation to continue, a plugin or one of the `inputs` (see
    `fingerprint_sweep`) has changed, or a study of it was deleted; for one that begins, the errors of `draw_seeds`."""
    known = list_generations(storage).get(spec.name, [0])
    if fresh or known == [0]:
        return known[-1] + 1, draw_seeds(spec, read_seed_tables(storage))
    record = read_generation(storage, spec.name, known[-1])
    if record.deleted:
        raise SweepError(record.describe_deleted())
    refuse_changes(record.spec, spec, record, inputs)
    kept = spec.model_copy(update={"spent": record.spec.spent})
    return known[-1], kept.share_with(record.spec.family)


def refuse_changes(before: Sweep, now: Sweep, record: SweepRecord, inputs: Mapping[str, str]) -> None:
    """Raise SweepError if the generation `record`, which was started as `before`, cannot continue as `now` with these
    `inputs`."""
    changes = [*list_differences(before, now), *list_changed_plugins(now, record.plugins)]
    changes += list_changed_inputs(record.inputs, inputs)
    if changes:
        raise SweepError(
            f"{now.name} was started with another sweep file, plugin or data. What changed:\n"
            + "\n".join(f"  {change}" for change in changes)
            + (
                f"\nRestore it to go on. Changed, it is another sweep, with seeds of its own: ablate sweep --fresh "
                f"begins it as the next generation, and what {record.full_name} found is kept and is still reported."
            )
        )


def list_differences(before: Sweep, now: Sweep) -> list[str]:
    """Return 'path: old -> new' for each setting in which two sweeps differ, except settings that may change."""
    old, new = (
        dict(iterate_leaves({key: value for key, value in spec.to_tree().items() if key not in _CHANGEABLE}))
        | {"confirm.at": spec.confirm.at}  # which defines the arms
        for spec in (before, now)
    )
    absent = "(not set)"
    return [
        f"{path}: {old.get(path, absent)} -> {new.get(path, absent)}"
        for path in dict.fromkeys([*old, *new])
        if old.get(path, absent) != new.get(path, absent)
        and not path.startswith(_NOTES)
        and not (path == _GROWS and before.challenge.trials <= now.challenge.trials)
    ]


def list_changed_plugins(spec: Sweep, before: Mapping[str, str]) -> list[str]:
    """Return 'file: SHA-256 old -> new' for each plugin of `spec` that differs from `before`."""
    return list_changed_inputs(before, plugins.hash_files(spec.plugin_files))


def open_arms(queue: Queue, corpora: Mapping[DataConfig, Corpus]) -> None:
    """Create the studies of the arms, where they are missing, each with its run in MLflow."""
    spec = queue.spec
    first = spec.base(next(iter(spec.all_arms)))
    if first.procedure == "training":
        logger.info(f"validation: {first.validation.describe(corpora[first.data].count_validation_items())}")
    trivial_losses: dict[tuple[DataConfig, Task, ModelConfig, int | None], float | None] = {}
    for arm in spec.all_arms:
        study = create_study(queue.storage, f"{queue.prefix}{arm}", spec)
        study.set_user_attr("plugins", plugins.hash_files(spec.plugin_files))
        base = spec.base(arm)
        corpus = corpora[base.data].limit_validation(base.validation.samples)
        study.set_user_attr("validation_items", choose_procedure(base).count_validation_items(base, corpus))
        study.set_user_attr("initial_loss", base.task.initial_loss(corpus.classes))
        if "trivial_loss" not in study.user_attrs:
            known = base.data, base.task, base.model, base.validation.samples
            if known not in trivial_losses:
                trivial_losses[known] = base.task.measure_trivial_loss(corpus, base.model)
            if (loss := trivial_losses[known]) is not None:  # else a later call may know it
                study.set_user_attr("trivial_loss", loss)
        if scores := [part for part in list_parts(spec.objective.metric) if is_score(part)]:
            counts = count_score_items(base)
            study.set_user_attr("score_items", {score: counts[score] for score in scores})
        _open_parent_run(study, spec, format_title(spec.name, queue.studies.generation), arm)
    queue.studies.refresh()


def check_donors(queue: Queue, corpora: Mapping[DataConfig, Corpus]) -> None:
    """Check the source runs of the arms in the storage, as far as they are trained already. Raises SweepError if one is
    missing, ConfigError if one does not fit."""
    for arm in queue.spec.all_arms:
        base = queue.spec.base(arm)
        if find_own_donor(queue.spec, arm) is None and _starts_from_sweep(base):
            base = pin_donors(base, queue.storage, f"{queue.prefix}{arm}")
            choose_procedure(base).pin(base, corpora[base.data])


def pick_threads(queue: Queue, wanted: int) -> int:
    """Return the threads of each trial: the number that the sweep's earlier trials used, otherwise those `wanted`.
    Losses depend on it in their last digits, and near divergence in their first."""
    return queue.keep_first("threads", wanted)


def _open_parent_run(study: Study, spec: Sweep, title: str, arm: str) -> str:
    """Return the arm's run in MLflow, created if missing."""
    known = study.user_attrs.get("parent")
    uri = tracking.redact(tracking.tracking_uri())  # readers of the studies must not see a password
    if known and study.user_attrs.get("tracking_uri") == uri and tracking.find_active_run(known):
        return str(known)
    mark = study.user_attrs.get("mark")  # finds the run of a process that was killed before it wrote down the id
    run_id = tracking.find_run(title, {"ablate.mark": mark}) if mark else None
    if not mark:
        study.set_user_attr("mark", mark := uuid.uuid4().hex)
    tags = {"ablate.role": "arm", "ablate.sweep": title, "ablate.arm": arm, "ablate.mark": mark}
    software = provenance.describe_software()  # its trials may run elsewhere, and this process computes on no GPU
    tags |= pick_shown(software)
    tracker = tracking.Tracker(run_id) if run_id else tracking.Tracker.start(title, arm, tags)
    flat, searched = spec.base(arm).flat(), dict.fromkeys(spec.space(arm), "searched")
    fixed = {path: value for path, value in flat.items() if path not in searched}
    tracker.log_params({**shorten_settings({**flat, **searched}, arm), **fixed})
    tracker.log_text(spec.to_yaml(), "sweep.yaml")
    log_facts(tracker, software)
    for name, text in plugins.read_copies(spec.plugin_files).items():
        tracker.log_text(text, name)
    study.set_user_attr("parent", tracker.run_id)
    study.set_user_attr("tracking_uri", uri)
    return tracker.run_id


def begin_session(
    spec: Sweep, url: str, fresh: bool, threads: int | None, note: Callable[[str], None] = logger.debug
) -> tuple[Queue, int]:
    """Return the runs of the sweep in the storage at `url`, with those requeued that earlier sessions left, and the
    threads of a trial (see `open_sweep`). `note` is called with a sentence on each difference from earlier sessions.
    Raises the errors of `open_sweep` and of `take_over`."""
    queue, chosen = open_sweep(take_over(spec, url), url, fresh, threads)
    with translate_storage_errors(url):
        again = queue.begin_session()
        now = ranks.world_size()
        before = queue.read_notes(next(iter(queue.spec.all_arms))).get("ranks", now)
        for arm in queue.spec.all_arms:
            queue.write_note(arm, "ranks", now)
    if chosen != threads:
        note(f"Each trial computes on {count_noun(chosen, 'thread')}, as the earlier trials did.")
    if before != now:
        told = count_noun(now, "rank")
        note(
            f"From now on trials are trained by {told}, earlier ones by {before}: their losses are rounded differently."
        )
    if again:
        note(f"{count_noun(again, 'trial')} of an earlier session requeued.")
    return queue, chosen


def open_queue(name: str, url: str) -> tuple[Queue, int]:
    """Return the runs of the sweep `name` in the storage at `url`, which a command has prepared, and the threads of a
    trial. Raises SweepError for an unknown sweep or a changed plugin."""
    storage = open_storage(url)
    record = read_sweep_from(storage, name)
    if deleted := record.describe_deleted():
        raise SweepError(deleted)
    if changes := list_changed_plugins(record.spec, record.plugins):
        raise SweepError(f"A plugin of {record.title} has changed:\n  {', '.join(changes)}\nRestore it.")
    queue = Queue(storage, record.name, record.generation, record.spec)
    return queue, do_locked(storage, lambda: pick_threads(queue, share_cores(ranks.local_size())))
