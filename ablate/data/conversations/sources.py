"""Rows with all their columns from JSON, JSON lines, parquet and arrow files or a dataset, for instructions and
preferences."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError
from ablate.data.cache import fingerprint_files
from ablate.data.files import explain, find_files
from ablate.data.readers import name_json_type, open_arrow, open_parquet, open_text, read_json_lines
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


def open_rows(
    files: Sequence[str], dataset: str | None, subset: str | None, split: str, revision: str | None, cache: Path
) -> RowSource:
    """Return the rows of `files` or, if a dataset is named, of its split. Raises DataError if they are missing."""
    if dataset is not None:
        source: DatasetSource = open_dataset(dataset, subset, split, revision, "", cache)
        return RowSource(source.name, source.fingerprint, source.read_rows)
    paths = find_files(fetch_all(files, cache), lambda path: path.suffix.lower() in READERS, ACCEPTED)
    name = ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if paths[3:] else "")
    return RowSource(name, fingerprint_files(paths, cache), lambda: (row for path in paths for row in _read_file(path)))


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


def _read_json_lines(path: Path) -> Iterator[Row]:
    return read_json_lines(path, '{"instruction": ..., "output": ...}')


def _read_parquet(path: Path) -> Iterator[Row]:
    with open_parquet(path) as (_, batches):
        yield from _number_rows(path, batches)


def _read_arrow(path: Path) -> Iterator[Row]:
    with open_arrow(path) as (_, batches):
        yield from _number_rows(path, batches)


def _number_rows(path: Path, batches: Iterable[Any]) -> Iterator[Row]:
    rows = (row for batch in batches for row in batch.to_pylist())
    for number, row in enumerate(rows, 1):
        yield f"{path}: row {number}", row


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json-lines": _read_json_lines,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
"""The reader of a file, by its suffix."""

ACCEPTED = ", ".join(READERS)
"""The suffixes that are accepted, for messages."""
