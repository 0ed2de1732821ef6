"""How work on a sweep begins: a command begins a session, and each worker opens what that has prepared."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ablate.config.errors import SweepError
from ablate.config.formatting import count_noun
from ablate.distributed import ranks
from ablate.scheduler.devices import share_cores
from ablate.scheduler.preparation import list_changed_plugins, open_sweep, pick_threads
from ablate.scheduler.queue import Queue
from ablate.scheduler.settings_from import take_over
from ablate.scheduler.storage import open_storage, read_sweep_from
from ablate.scheduler.storage_errors import translate_storage_errors
from ablate.scheduler.storage_lock import do_locked
from ablate.sweeps.spec.sweep import Sweep

logger = logging.getLogger(__name__)


def begin_session(
    spec: Sweep, url: str, fresh: bool, threads: int | None, note: Callable[[str], None] = logger.debug
) -> tuple[Queue, int]:
    """Return the runs of the sweep in the storage at `url`, with those put up that earlier sessions left, and the
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
