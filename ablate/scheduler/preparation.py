"""Preparation of a sweep: finding errors that would fail every trial, and opening or resuming the studies of its
arms."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import ConfigError, Problem, SweepError
from ablate.config.formatting import count_noun
from ablate.config.merging import iterate_leaves
from ablate.distributed import ranks
from ablate.scheduler.devices import share_cores
from ablate.scheduler.donors import take_over
from ablate.scheduler.queue import Queue
from ablate.scheduler.runners import Runner, load_runner
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
from ablate.sweeps.spec.sweep import Sweep
from ablate.tracking import provenance
from ablate.tracking.provenance import log_facts, pick_shown
from ablate.training.runs import list_changed_inputs, shorten_settings

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage


logger = logging.getLogger(__name__)

# parts of a sweep file that may change while its studies go on
_CHANGEABLE = ("budget", "confirm", "baseline", "published", "checkpoints", "factor", "confounds", "family")
# say what other settings are, which are compared themselves
_NOTES = ("scale.changed", "taken_over.", "spent.")
_GROWS = "challenge.trials"  # as the seeds: an arm may try more, which is for the arms that are behind


def check_workers(spec: Sweep, workers: int) -> None:
    """Raise ConfigError if so many workers keep runs from training alone, whose seconds are compared."""
    if spec.compare.at == "seconds" and workers > 1:
        text = "seconds are compared between runs that trained alone: use one worker, or another compare.at"
        raise ConfigError([Problem("--workers", text, workers)], f"sweep {spec.name}")


def open_sweep(spec: Sweep, url: str, fresh: bool, threads: int | None) -> tuple[Queue, int]:
    """Return the runs of the sweep in the storage at `url`, and the threads of a trial: `threads`, unless the sweep
    started with another number; 0 if neither is set. Raises errors that would fail every trial: ConfigError, DataError,
    StoreError, SweepError for a changed file.
    """
    runner = load_runner(spec.kind)
    corpora = runner.prepare(spec)
    inputs = runner.fingerprint(spec, corpora)
    tracking.client()
    storage = open_storage(url)

    def open_all() -> tuple[Queue, int]:
        generation, drawn = pick_generation(spec, storage, fresh, inputs)  # which another may begin just now
        queue = Queue(storage, spec.name, generation, drawn)
        open_arms(queue, runner, corpora)
        for arm in spec.all_arms:
            queue.note_inputs(arm, inputs)
            queue.note_studies(arm, [f"{queue.prefix}{other}" for other in spec.all_arms])
        runner.check_donors(queue, corpora)
        return queue, pick_threads(queue, threads) if threads else 0

    with translate_storage_errors(url):
        return do_locked(storage, open_all)


def pick_generation(spec: Sweep, storage: BaseStorage, fresh: bool, inputs: Mapping[str, str]) -> tuple[int, Sweep]:
    """Return the generation to begin or to continue, and the sweep with the seeds that are its own. The comparisons of
    other sizes with which it shared its error stay, also those that are no longer in the file.

    Raises SweepError if the sweep file of a generation to continue, a plugin or one of the `inputs` (see
    `Runner.fingerprint`) has changed, or a study of it was deleted; for one that begins, the errors of `draw_seeds`."""
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
            f"{now.name} was started with another sweep file, plugin, data or version of Ablate. What changed:\n"
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


def open_arms(queue: Queue, runner: Runner, prepared: Any) -> None:
    """Create the studies of the arms, where they are missing, each with its run in MLflow and what is known of its runs
    before they begin. `prepared`: by the `runner`."""
    spec = queue.spec
    studies = {arm: create_study(queue.storage, f"{queue.prefix}{arm}", spec) for arm in spec.all_arms}
    known = runner.describe_arms(spec, prepared, {arm: study.user_attrs for arm, study in studies.items()})
    for arm, study in studies.items():
        study.set_user_attr("plugins", plugins.hash_files(spec.plugin_files))
        for key, value in known[arm].items():
            study.set_user_attr(key, value)
        _open_parent_run(study, spec, format_title(spec.name, queue.studies.generation), arm)
    queue.studies.refresh()


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
    tags["mlflow.runColor"] = spec.looks[arm][0]
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
