"""The lock of an Optuna storage, under which one process at a time decides what comes next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ablate.scheduler.storages.kinds import find_kind
from ablate.tracking.databases import repeat_while_away

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

T = TypeVar("T")


def do_locked(storage: BaseStorage, step: Callable[[], T]) -> T:
    """Return the result of `step`, called under the lock of `storage` (see `lock_storage`). If the server becomes
    unreachable meanwhile, wait for it, take the lock again and repeat `step` from its start, wherever it was
    interrupted."""
    from ablate.scheduler.optuna_private import DatabaseServer

    def once() -> T:
        with lock_storage(storage):
            return step()

    kind = find_kind(storage)
    return repeat_while_away(once, kind.url) if isinstance(kind, DatabaseServer) else once()


@contextlib.contextmanager
def lock_storage(storage: BaseStorage) -> Iterator[None]:
    """Let one process at a time, over all machines that share `storage`, run this context, so that counts are still
    valid when a trial is requested. The lock is released when its process ends. Raises StoreError after two minutes of
    waiting. A storage in memory, which no other process sees, has no lock."""
    kind = find_kind(storage)
    with kind.hold_lock() if hasattr(kind, "hold_lock") else contextlib.nullcontext():
        yield
