"""Addresses of databases: which driver a PostgreSQL one takes, and locks that all machines on one server share."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ablate.errors import StoreError

if TYPE_CHECKING:
    from sqlalchemy import Engine

LOCKED = 120  # seconds that a process waits for another that holds a lock
ASKING, CREATING = 1, 2  # what locks are taken for: a trial's turn, and making tables
_DRIVERS = ("psycopg", "psycopg2")


def with_driver(url: str) -> str:
    """`url`, of a plain `postgresql://` or `postgres://` one with the driver that is installed: SQLAlchemy's own choice
    differs between its versions."""
    plain = re.match(r"postgres(ql)?://", url)
    driver = next((name for name in _DRIVERS if find_spec(name)), None) if plain else None
    if plain and driver:
        return f"postgresql+{driver}://{url[plain.end() :]}"
    return f"postgresql://{url[plain.end() :]}" if plain else url


def missing_driver(error: ImportError, what: str) -> StoreError:
    """What is told where the Python module of a database is not installed; `what` names the database."""
    module = getattr(error.__cause__, "name", None) or error.name or str(error)
    hint = " Install it: pip install 'ablate[cluster]'" if module in _DRIVERS else ""
    return StoreError(f"{what} needs the Python module {module}, which is not installed.{hint}")


@contextlib.contextmanager
def server_lock(engine: Engine, number: int) -> Iterator[None]:
    """One process at a time, over all machines that use the database of `engine`; other databases take no lock.

    The lock is the connection's, so a process that dies holds none. Raises StoreError after two minutes of waiting.
    """
    from sqlalchemy import text
    from sqlalchemy.exc import OperationalError

    kind = engine.dialect.name
    if kind not in ("postgresql", "mysql", "mariadb"):
        yield
        return
    with engine.connect() as connection:
        if kind == "postgresql":
            give = f"SELECT pg_advisory_unlock(4149, {number})"
            connection.execute(text(f"SET LOCAL lock_timeout = '{LOCKED}s'"))
            try:
                connection.execute(text(f"SELECT pg_advisory_lock(4149, {number})"))
                taken = True
            except OperationalError as error:
                if getattr(error.orig, "pgcode", getattr(error.orig, "sqlstate", None)) != "55P03":  # lock timeout
                    raise
                taken = False
        else:
            give = f"SELECT RELEASE_LOCK('ablate-{number}')"
            taken = connection.execute(text(f"SELECT GET_LOCK('ablate-{number}', {LOCKED})")).scalar() == 1
        if not taken:
            raise StoreError(
                "Another process holds the lock of the database for two minutes. Stop that process, or wait."
            )
        try:
            yield
        finally:
            connection.execute(text(give))
            connection.commit()
