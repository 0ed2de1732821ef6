"""Documents from files: .txt and .md contain one, JSON lines, parquet and arrow one in each line or row.

The builders of `datasets` do not replace these readers: they do not read .zst, ignore a missing or wrong column of JSON
without an error, and return a text file as a whole. They resume exactly, but read at half to three quarters of the
speed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from ablate.config.errors import DataError
from ablate.data.files import explain
from ablate.data.readers import (
    COMPRESSED,
    count_bytes,
    explain_missing_column,
    get_text,
    open_table,
    read_json_lines,
    read_lines,
    read_table,
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
        yield from yield_piece(where, get_text(where, row, column))


def yield_piece(where: str, text: str) -> Iterator[Piece]:
    """Yield the document in a row, or nothing if it is empty. Raises DataError for text that is not Unicode."""
    if size := count_bytes(where, text):
        yield Piece(text, size)


def _read_table(path: Path, column: str) -> Iterator[Piece]:
    with open_table(path, column) as (schema, batches):
        if column not in schema.names:
            raise explain_missing_column(str(path), column, schema.names)
        kind = schema.field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"{path}: the column {column!r} must contain strings, but contains {kind}")
        for where, row in read_table(path, batches):
            yield from yield_piece(where, get_text(where, row, column))


READERS: dict[str, Callable[[Path, str], Iterator[Piece]]] = {
    ".txt": _read_text,
    ".md": _read_text,
    ".jsonl": _read_json_documents,
    ".ndjson": _read_json_documents,
    ".json-lines": _read_json_documents,
    ".parquet": _read_table,
    ".arrow": _read_table,
}
"""The reader of a file, by its suffix."""

WHOLE = (".txt", ".md")
"""The suffixes of files that are one document each."""
LINES = (".txt", ".md", ".jsonl", ".ndjson", ".json-lines")
ACCEPTED = f"{', '.join(READERS)}; all but the last two also compressed ({', '.join(COMPRESSED)})"
"""The suffixes that are accepted, for messages."""
