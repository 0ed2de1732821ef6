"""Documents from files: .txt and .md contain one, JSON lines, parquet and arrow one in each line or row.

The builders of `datasets` do not replace these readers: they do not read .zst, ignore a missing or wrong column of JSON
without an error, and return a text file as a whole. They resume exactly, but read at half to three quarters of the
speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from ablate.config.errors import DataError
from ablate.data.files import explain
from ablate.data.readers import (
    COMPRESSED,
    explain_missing_column,
    name_json_type,
    open_arrow,
    open_parquet,
    read_json_lines,
    read_lines,
)

PIECE = 1 << 20
"""Bytes after which a long text file is cut at a line end, so that files of any size can be encoded."""


class Piece(NamedTuple):
    """A document, or a part of a long one."""

    text: str
    size: int
    """UTF-8 bytes."""
    last: bool = True
    """Whether the document ends here."""


def find_format(path: Path) -> str:
    """Return the key of `READERS` for a file: its suffix without the suffix of a compression; "" for an unknown one."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    suffix = inner.suffix.lower()
    return suffix if suffix in READERS and (inner is path or suffix in LINES) else ""


def read_file(path: Path, column: str) -> Iterator[Piece]:
    """Yield the documents of a file; empty ones are left out. `column` contains the text in JSON, parquet and arrow.
    Raises DataError, naming the file and the line, for content that cannot be read.
    """
    try:
        yield from READERS[find_format(path)](path, column)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain(error)}") from error


def _read_text(path: Path, column: str) -> Iterator[Piece]:
    parts: list[str] = []
    size = 0
    for _, line, length in read_lines(path):
        if size >= PIECE:
            yield Piece("".join(parts), size, last=False)
            parts, size = [], 0
        parts.append(line)
        size += length
    if size:
        yield Piece("".join(parts), size)


def _read_json_documents(path: Path, column: str) -> Iterator[Piece]:
    for where, row in read_json_lines(path, f"{{{json.dumps(column)}: ...}}"):
        if column not in row:
            raise explain_missing_column(where, column, list(row))
        if not isinstance(row[column], str):
            raise DataError(f"{where}: {column!r} must be a string, but is {name_json_type(row[column])}")
        yield from yield_piece(where, row[column])


def yield_piece(where: str, text: str) -> Iterator[Piece]:
    """Yield the document in a row, or nothing if it is empty. Raises DataError for text that is not Unicode."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise DataError(f"{where}: the text has a lone surrogate (half a character) and is not valid Unicode") from None
    if size:
        yield Piece(text, size)


def _read_parquet(path: Path, column: str) -> Iterator[Piece]:
    with open_parquet(path, [column]) as (schema, batches):
        _check_column(path, column, schema)
        yield from _read_rows(path, column, batches)


def _read_arrow(path: Path, column: str) -> Iterator[Piece]:
    with open_arrow(path) as (schema, batches):
        _check_column(path, column, schema)
        yield from _read_rows(path, column, (batch.select([column]) for batch in batches))


def _check_column(path: Path, column: str, schema: Any) -> None:
    if column not in schema.names:
        raise explain_missing_column(str(path), column, schema.names)
    kind = schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"{path}: the column {column!r} must contain strings, but contains {kind}")


def _read_rows(path: Path, column: str, batches: Iterable[Any]) -> Iterator[Piece]:
    number = 0
    for batch in batches:
        for scalar in batch.column(0):
            number += 1
            where = f"{path}: row {number}"
            try:
                text = scalar.as_py()
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                raise DataError(f"{where}: byte 0x{byte:02x} of {column!r} is not UTF-8, which is expected") from None
            if text is None:
                raise DataError(f"{where}: {column!r} must be a string, but is null")
            yield from yield_piece(where, text)


READERS: dict[str, Callable[[Path, str], Iterator[Piece]]] = {
    ".txt": _read_text,
    ".md": _read_text,
    ".jsonl": _read_json_documents,
    ".ndjson": _read_json_documents,
    ".json-lines": _read_json_documents,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
"""The reader of a file, by its suffix."""

WHOLE = (".txt", ".md")
"""The suffixes of files that are one document each."""
LINES = (".txt", ".md", ".jsonl", ".ndjson", ".json-lines")
ACCEPTED = f"{', '.join(READERS)}; all but the last two also compressed ({', '.join(COMPRESSED)})"
"""The suffixes that are accepted, for messages."""
