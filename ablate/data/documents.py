"""Documents out of text files: .txt and .md hold one document, JSON lines and parquet one in each line or row."""

from __future__ import annotations

import codecs
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ablate.data.files import reason
from ablate.errors import DataError, did_you_mean

PIECE = 1 << 20
"""Bytes after which a long text file is cut, at a line end, so that a file of any size can be encoded."""


class Piece(NamedTuple):
    """A document or, of a long one, a part."""

    text: str
    size: int
    """UTF-8 bytes."""
    last: bool = True
    """Whether the document ends here."""


def read_documents(paths: Sequence[Path], column: str) -> Iterator[Piece]:
    """The documents of all files in order; empty ones are left out. `column` is where JSON and parquet keep the text.

    Raises DataError, naming the file and the line, for what cannot be read.
    """
    for path in paths:
        try:
            yield from READERS[path.suffix.lower()](path, column)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {reason(error)}") from error


def _lines(path: Path) -> Iterator[tuple[int, str, int]]:
    """(line number from 1, line with its end, bytes) of a UTF-8 file."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield number, line.decode("utf-8"), len(line)
            except UnicodeDecodeError as error:
                utf16 = number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                raise DataError(
                    f"{path}:{number}: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line is not "
                    f"UTF-8, which is expected{'; the file looks like UTF-16' if utf16 else ''}. To convert: "
                    f"iconv -f {'utf-16' if utf16 else 'latin1'} -t utf-8 {shlex.quote(str(path))} > "
                    f"{shlex.quote(path.stem + '-utf8' + path.suffix)}"
                ) from None


def _text(path: Path, column: str) -> Iterator[Piece]:
    parts: list[str] = []
    size = 0
    for _, line, length in _lines(path):
        if size >= PIECE:
            yield Piece("".join(parts), size, last=False)
            parts, size = [], 0
        parts.append(line)
        size += length
    if size:
        yield Piece("".join(parts), size)


def _json_lines(path: Path, column: str) -> Iterator[Piece]:
    for number, line, _ in _lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not a line of JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not a line of JSON that can be read: {reason(error)}") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object such as {{{json.dumps(column)}: ...}}, got {_json_type(row)}")
        if column not in row:
            raise _no_column(where, column, list(row))
        if not isinstance(row[column], str):
            raise DataError(f"{where}: {column!r} is not a string but {_json_type(row[column])}")
        yield from _row(where, row[column])


def _row(where: str, text: str) -> Iterator[Piece]:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise DataError(f"{where}: the text has a lone surrogate (half a character) and is not valid Unicode") from None
    if size:
        yield Piece(text, size)


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null", str: "a string"}
    return names.get(type(value), "a number")


def _no_column(where: str, column: str, columns: list[str]) -> DataError:
    there = ", ".join(map(repr, columns)) or "none"
    return DataError(f"{where}: no column {column!r}. Columns: {there}.{did_you_mean(column, columns)}")


def _parquet(path: Path, column: str) -> Iterator[Piece]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DataError(f"{path} needs the library pyarrow: pip install pyarrow") from error
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            if column not in schema.names:
                raise _no_column(str(path), column, schema.names)
            kind = schema.field(column).type
            value = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not (pa.types.is_string(value) or pa.types.is_large_string(value)):
                raise DataError(f"{path}: the column {column!r} does not hold strings but {kind}")
            number = 0
            for batch in file.iter_batches(batch_size=1024, columns=[column]):
                for scalar in batch.column(0):
                    number += 1
                    yield from _parquet_row(f"{path}: row {number}", column, scalar)
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {reason(error)}") from error


def _parquet_row(where: str, column: str, scalar: object) -> Iterator[Piece]:
    try:
        text = scalar.as_py()  # type: ignore[attr-defined]
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"{where}: byte 0x{byte:02x} of {column!r} is not UTF-8, which is expected") from None
    if text is None:
        raise DataError(f"{where}: {column!r} is not a string but null")
    yield from _row(where, text)


READERS: dict[str, Callable[[Path, str], Iterator[Piece]]] = {
    ".txt": _text,
    ".md": _text,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json-lines": _json_lines,
    ".parquet": _parquet,
}
"""What reads a file, by its suffix."""
