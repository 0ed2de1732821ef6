"""How work on a sweep begins: a command begins a session, and each worker opens what that has prepared."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ablate.config.errors import SweepError
from ablate.config.formatting import count_noun
from ablate.distributed import ranks
from ablate.sweeps.arms import ArmTrials
from ablate.sweeps.devices import share_cores
from ablate.sweeps.preparation import list_changed_plugins, open_sweep, pick_threads
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.rung_trials import build_arm
from ablate.sweeps.settings_from import take_over
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import load_study, name_study, open_storage, read_sweep_from
from ablate.sweeps.storage_errors import translate_storage_errors
from ablate.sweeps.storage_lock import do_locked
from ablate.sweeps.trial_queue import TrialQueue

logger = logging.getLogger(__name__)


def begin_session(
    spec: Sweep, url: str, fresh: bool, threads: int | None, note: Callable[[str], None] = logger.debug
) -> tuple[str, TrialQueue, int]:
    """Return the sweep as NAME@GENERATION in the storage at `url`, the queue of its trials, with those put up that
    earlier sessions left, and the threads of a trial (see `open_sweep`). `note` is called with a sentence on each
    difference from earlier sessions. Raises the errors of `open_sweep` and of `take_over`."""
    spec = take_over(spec, url)
    storage, name, arms, chosen = open_sweep(spec, url, fresh, threads)
    with translate_storage_errors(url):
        queue = TrialQueue(arms, storage)
        again = queue.recover()
        before = _record_ranks(arms)
    if chosen != threads:
        note(f"Each trial computes on {count_noun(chosen, 'thread')}, as the earlier trials did.")
    if before != ranks.world_size():
        now = count_noun(ranks.world_size(), "rank")
        note(
            f"From now on trials are trained by {now}, earlier ones by {before}: their losses are rounded differently."
        )
    if again:
        note(f"{count_noun(again, 'trial')} of an earlier session requeued.")
    return name, queue, chosen


def _record_ranks(arms: list[ArmTrials]) -> int:
    """Record the number of ranks of this group, and return the number that trained the sweep's earlier trials."""
    now = ranks.world_size()
    known = [n for arm in arms if (n := arm.study.user_attrs.get("ranks"))]
    for arm in arms:
        arm.study.set_user_attr("ranks", now)
    return int(known[0] if known else now)


def load_arms(name: str, url: str) -> tuple[SweepRecord, list[ArmTrials], int]:
    """Return the sweep `name` in the storage at `url`, which a command has prepared, its arms, and the threads of a
    trial. Raises SweepError for an unknown sweep or a changed plugin."""
    storage = open_storage(url)
    record = read_sweep_from(storage, name)
    if deleted := record.describe_deleted():
        raise SweepError(deleted)
    spec, names = record.spec, {arm: name_study(record.name, record.generation, arm) for arm in record.arms}
    studies = {arm: load_study(storage, name) for arm, name in names.items()}
    first = next(iter(studies.values()))
    if changes := list_changed_plugins(spec, first.user_attrs.get("plugins", {})):
        raise SweepError(f"A plugin of {record.title} has changed:\n  {', '.join(changes)}\nRestore it.")
    arms = [build_arm(study, spec, arm, study.user_attrs["parent"]) for arm, study in studies.items()]
    return record, arms, do_locked(storage, lambda: pick_threads(arms, share_cores(ranks.local_size())))
