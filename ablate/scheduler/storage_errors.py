"""Translation of the errors of a failing or damaged Optuna storage into a StoreError that says what to do."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ablate.config.errors import AblateError, StoreError
from ablate.scheduler.storages.kinds import find_kind
from ablate.tracking.databases import LostConnectionError, describe_failure, redact, shorten

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_MEND = "Replace it by a backup, or move it away to start from the beginning."


@contextlib.contextmanager
def explain_damage(storage: BaseStorage | None) -> Iterator[None]:
    """Raise errors of reading a storage as a StoreError: a damaged file fails in SQLite, or has unexpected content."""
    url = redact(getattr(find_kind(storage), "url", "in memory")) if storage else "in memory"
    try:
        with translate_storage_errors(url):
            yield
    except (MemoryError, AblateError):
        raise
    except Exception as error:
        text = shorten(error).rstrip(".") or type(error).__name__
        raise StoreError(f"The Optuna storage {url} is damaged: its content is not valid ({text}). {_MEND}") from None


@contextlib.contextmanager
def translate_storage_errors(url: str) -> Iterator[None]:
    """Raise errors of a storage during a sweep as a StoreError that says what to do."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (
        optuna.exceptions.StorageInternalError,
        sqlalchemy.exc.SQLAlchemyError,
        sqlite3.Error,
        LostConnectionError,
    ) as error:
        text = describe_failure(error)
        what = "Finished trials are safe; run the same command again once it answers."
        if "malformed" in text or "not a database" in text:
            what = f"The file is damaged. {_MEND}"
        elif "full" in text:
            what = "Free some space. Finished trials are safe, and the same command continues."
        raise StoreError(f"The Optuna storage {redact(url)} failed: {text} {what}") from None
