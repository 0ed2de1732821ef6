"""What an Optuna storage that fails or is damaged raises, as a StoreError that says what to do."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ablate.config.errors import AblateError, StoreError
from ablate.tracking.databases import describe_failure, redact, shorten

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_MEND = "Put a copy in its place, or move it away to begin anew."


@contextlib.contextmanager
def explain_damage(storage: BaseStorage | None) -> Iterator[None]:
    """Raise what reading a storage raises as a StoreError: a damaged file fails in SQLite, or holds other things than
    were written."""
    url = redact(getattr(getattr(storage, "_backend", storage), "url", "in memory"))
    try:
        with translate_storage_errors(url):
            yield
    except (MemoryError, AblateError):
        raise
    except Exception as error:
        text = shorten(error).rstrip(".") or type(error).__name__
        raise StoreError(
            f"The Optuna storage {url} is damaged: it does not hold what was written ({text}). {_MEND}"
        ) from None


@contextlib.contextmanager
def translate_storage_errors(url: str) -> Iterator[None]:
    """Turns a storage that fails in the middle of a sweep into a StoreError that says what to do."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error) as error:
        text = describe_failure(error)
        what = "Finished trials are safe; run the same command again once it answers."
        if "malformed" in text or "not a database" in text:
            what = f"The file is damaged. {_MEND}"
        elif "full" in text:
            what = "Make room. Finished trials are safe, and the same command goes on."
        raise StoreError(f"The Optuna storage {redact(url)} failed: {text} {what}") from None
