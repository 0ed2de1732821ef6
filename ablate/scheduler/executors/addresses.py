"""The addresses that every worker of a sweep is given, and whether workers on several machines can share them."""

from __future__ import annotations

from ablate import tracking
from ablate.config.errors import Problem
from ablate.scheduler.storage import storage_url


def list_addresses(url: str) -> dict[str, str]:
    """Return the environment variables with the location of the results; `url` is that of the storage. It may have a
    password, so it is never an argument of a command, which everybody can read."""
    return {
        "ABLATE_STORE": str(tracking.store_path()),
        "ABLATE_STORAGE": url,
        "MLFLOW_TRACKING_URI": tracking.tracking_uri(),
    }


def validate_databases(storage: str | None) -> list[Problem]:
    """Return a problem for each database that workers on several machines cannot share."""
    message = "several machines cannot share a SQLite file. Use a database server, such as"
    problems = []
    if (url := storage_url(storage)).startswith("sqlite"):
        problems.append(
            Problem(
                "--storage",
                f"{message} postgresql://me@host/ablate, or journal:///FILE on a file system that they share",
                tracking.redact(url),
            )
        )
    if (uri := tracking.tracking_uri()).startswith("sqlite"):
        problems.append(Problem("MLFLOW_TRACKING_URI", f"{message} http://host:5000", tracking.redact(uri)))
    return problems
