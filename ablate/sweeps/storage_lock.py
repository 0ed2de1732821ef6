"""The lock of an Optuna storage, under which one process at a time decides what comes next."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from ablate.config.errors import StoreError
from ablate.tracking.databases import ASKING, LOCKED, hold_server_lock, repeat_while_away, sqlite_file

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

T = TypeVar("T")


def do_locked(storage: BaseStorage, step: Callable[[], T]) -> T:
    """Return the result of `step`, called under the lock of `storage` (see `lock_storage`). If the server becomes
    unreachable meanwhile, wait for it, take the lock again and repeat `step` from its start, wherever it was
    interrupted."""

    def once() -> T:
        with lock_storage(storage):
            return step()

    database: Any = getattr(storage, "_backend", storage)
    url = getattr(database, "url", "")
    return repeat_while_away(once, url) if url and sqlite_file(url) is None else once()


@contextlib.contextmanager
def lock_storage(storage: BaseStorage) -> Iterator[None]:
    """Let one process at a time, over all machines that share `storage`, run this context, so that counts are still
    valid when a trial is requested. The lock is released when its process ends. Raises StoreError after two minutes of
    waiting."""
    from filelock import FileLock, Timeout

    database: Any = getattr(storage, "_backend", storage)  # it is behind a cache
    url = getattr(database, "url", "")
    file = sqlite_file(url)
    if not url or url.endswith(":memory:"):
        yield
    elif file is not None:
        try:
            with FileLock(f"{file}.asking", timeout=LOCKED):
                yield
        except Timeout:
            raise StoreError(f"Another process holds {file}.asking for two minutes. Stop it, or wait.") from None
    else:
        with hold_server_lock(database.engine, ASKING) as connection, database.guard_writes(connection):
            yield
