"""Rows with all their columns, out of JSON, JSON lines, parquet and arrow files or of a dataset: what instructions and
preferences are read from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ablate.config.errors import DataError
from ablate.data.cache import content_fingerprint
from ablate.data.files import reason, resolve
from ablate.data.text.documents import arrow_batches, json_rows, json_type
from ablate.data.text.sources import Dataset, dataset_source
from ablate.tracking.remote_files import local

Row = tuple[str, dict[str, Any]]
"""Where a row is, for messages, and its values by column."""


class Objects:
    """The rows of files, or of a split of a dataset, in their order."""

    def __init__(self, name: str, fingerprint: str, rows: Callable[[], Iterator[Row]]) -> None:
        self.name, self.fingerprint, self._rows = name, fingerprint, rows

    def __iter__(self) -> Iterator[Row]:
        return self._rows()


def objects(
    files: Sequence[str], dataset: str | None, subset: str | None, split: str, revision: str | None, cache: Path
) -> Objects:
    """The rows of `files` or, where a dataset is named, of its split. Raises DataError where they are missing."""
    if dataset is not None:
        source: Dataset = dataset_source(dataset, subset, split, revision, "", cache)
        return Objects(source.name, source.fingerprint, source.rows)
    paths = resolve(local(files, cache), lambda path: path.suffix.lower() in READERS, ACCEPTED)
    name = ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if paths[3:] else "")
    return Objects(name, content_fingerprint(paths, cache), lambda: (row for path in paths for row in _read(path)))


def _read(path: Path) -> Iterator[Row]:
    try:
        yield from READERS[path.suffix.lower()](path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason(error)}") from error


def _json(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8, which is expected: byte {error.start}") from None
    except json.JSONDecodeError as error:
        hint = " JSON lines have the suffix .jsonl." if error.msg == "Extra data" else ""
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}.{hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON that can be read: {reason(error)}") from None
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, got {json_type(rows)}")
    for number, row in enumerate(rows, 1):
        where = f"{path}: entry {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, got {json_type(row)}")
        yield where, row


def _json_lines(path: Path) -> Iterator[Row]:
    return json_rows(path, '{"instruction": ..., "output": ...}')


def _parquet(path: Path) -> Iterator[Row]:
    try:
        with pq.ParquetFile(path) as file:
            yield from _numbered(path, file.iter_batches(batch_size=1024))
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {reason(error)}") from error


def _arrow(path: Path) -> Iterator[Row]:
    with arrow_batches(path) as (_, batches):
        yield from _numbered(path, iter(batches))


def _numbered(path: Path, batches: Iterator[Any]) -> Iterator[Row]:
    rows = (row for batch in batches for row in batch.to_pylist())
    for number, row in enumerate(rows, 1):
        yield f"{path}: row {number}", row


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".json": _json,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json-lines": _json_lines,
    ".parquet": _parquet,
    ".arrow": _arrow,
}
"""What reads a file, by its suffix."""

ACCEPTED = ", ".join(READERS)
"""The suffixes that are accepted, for messages."""
