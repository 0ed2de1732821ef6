"""Rows with all their columns from JSON, JSON lines, parquet and arrow files or a dataset, for instructions and
preferences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError
from ablate.config.formatting import join_first
from ablate.data.files import explain, find_files, fingerprint_files
from ablate.data.origins import Origin
from ablate.data.readers import name_json_type, open_table, open_text, read_json_lines, read_table
from ablate.data.text.sources import DatasetSource, open_dataset
from ablate.tracking.remote_files import fetch_all

Row = tuple[str, dict[str, Any]]
"""(Location of a row, for messages; its values by column)."""


class RowSource:
    """The rows of files, or of a split of a dataset, in their order."""

    def __init__(self, name: str, fingerprint: str, rows: Callable[[], Iterator[Row]]) -> None:
        self.name, self.fingerprint, self._rows = name, fingerprint, rows

    def __iter__(self) -> Iterator[Row]:
        return self._rows()


def open_rows(origin: Origin, cache: Path) -> RowSource:
    """Return the rows of files, or of a split of a dataset. Raises DataError if they are missing."""
    if origin.dataset is not None:
        source: DatasetSource = open_dataset(origin.dataset, origin.subset, origin.split, origin.revision, "", cache)
        return RowSource(source.name, source.fingerprint, source.read_rows)
    paths = find_files(fetch_all(origin.files, cache), lambda path: path.suffix.lower() in READERS, ACCEPTED)
    return RowSource(
        join_first(paths, 3),
        fingerprint_files(paths, cache),
        lambda: (row for path in paths for row in _read_file(path)),
    )


def _read_file(path: Path) -> Iterator[Row]:
    try:
        yield from READERS[path.suffix.lower()](path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain(error)}") from error


def _read_json(path: Path) -> Iterator[Row]:
    try:
        with open_text(path) as file:
            rows = json.loads(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8, which is expected: byte {error.start}") from None
    except json.JSONDecodeError as error:
        hint = " JSON lines have the suffix .jsonl." if error.msg == "Extra data" else ""
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}.{hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON that can be read: {explain(error)}") from None
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, got {name_json_type(rows)}")
    for number, row in enumerate(rows, 1):
        where = f"{path}: entry {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, got {name_json_type(row)}")
        yield where, row


def _read_table(path: Path) -> Iterator[Row]:
    with open_table(path) as (_, batches):
        yield from read_table(path, batches)


_read_json_lines = partial(read_json_lines, example='{"instruction": ..., "output": ...}')
READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json-lines": _read_json_lines,
    ".parquet": _read_table,
    ".arrow": _read_table,
}
"""The reader of a file, by its suffix."""

ACCEPTED = ", ".join(READERS)
"""The suffixes that are accepted, for messages."""
