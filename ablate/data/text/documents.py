"""Documents out of text files: .txt and .md hold one, JSON lines, parquet and arrow one in each line or row."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ablate.config.errors import DataError, did_you_mean
from ablate.data.files import explain

PIECE = 1 << 20
"""Bytes after which a long text file is cut, at a line end, so that a file of any size can be encoded."""


class Piece(NamedTuple):
    """A document or, of a long one, a part."""

    text: str
    size: int
    """UTF-8 bytes."""
    last: bool = True
    """Whether the document ends here."""


def find_format(path: Path) -> str:
    """What `READERS` calls the format of a file: its suffix, without that of a compression; "" for an unknown one."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    suffix = inner.suffix.lower()
    return suffix if suffix in READERS and (inner is path or suffix in LINES) else ""


def read_file(path: Path, column: str) -> Iterator[Piece]:
    """The documents of a file; empty ones are left out. `column` is where JSON, parquet and arrow keep the text.

    Raises DataError, naming the file and the line, for what cannot be read.
    """
    try:
        yield from READERS[find_format(path)](path, column)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain(error)}") from error


def _open_file(path: Path) -> BinaryIO:
    if path.suffix.lower() not in COMPRESSED:
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(pa.input_stream(str(path), compression="detect")))


def _read_lines(path: Path) -> Iterator[tuple[int, str, int]]:
    """(line number from 1, line with its end, bytes) of a UTF-8 file."""
    with _open_file(path) as file:
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


def _read_text(path: Path, column: str) -> Iterator[Piece]:
    parts: list[str] = []
    size = 0
    for _, line, length in _read_lines(path):
        if size >= PIECE:
            yield Piece("".join(parts), size, last=False)
            parts, size = [], 0
        parts.append(line)
        size += length
    if size:
        yield Piece("".join(parts), size)


def read_json_lines(path: Path, example: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it is, object) of each line of a file of JSON lines; `example` is what a message shows as one. Raises
    DataError."""
    for number, line, _ in _read_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not a line of JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not a line of JSON that can be read: {explain(error)}") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object such as {example}, got {name_json_type(row)}")
        yield where, row


def _read_json_documents(path: Path, column: str) -> Iterator[Piece]:
    for where, row in read_json_lines(path, f"{{{json.dumps(column)}: ...}}"):
        if column not in row:
            raise explain_missing_column(where, column, list(row))
        if not isinstance(row[column], str):
            raise DataError(f"{where}: {column!r} is not a string but {name_json_type(row[column])}")
        yield from yield_piece(where, row[column])


def yield_piece(where: str, text: str) -> Iterator[Piece]:
    """The document in a row, none where it is empty. Raises DataError for what is not Unicode."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise DataError(f"{where}: the text has a lone surrogate (half a character) and is not valid Unicode") from None
    if size:
        yield Piece(text, size)


def name_json_type(value: object) -> str:
    """What JSON calls the type of a value."""
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null", str: "a string"}
    return names.get(type(value), "a number")


def explain_missing_column(where: str, column: str, columns: list[str]) -> DataError:
    """The error of a missing column, with those that there are."""
    there = ", ".join(map(repr, columns)) or "none"
    return DataError(f"{where}: no column {column!r}. Columns: {there}.{did_you_mean(column, columns)}")


def _read_parquet(path: Path, column: str) -> Iterator[Piece]:
    try:
        with pq.ParquetFile(path) as file:
            _check_column(path, column, file.schema_arrow)
            yield from _read_rows(path, column, file.iter_batches(batch_size=1024, columns=[column]))
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {explain(error)}") from error


def _read_arrow(path: Path, column: str) -> Iterator[Piece]:
    with open_arrow(path) as (schema, batches):
        _check_column(path, column, schema)
        yield from _read_rows(path, column, (batch.select([column]) for batch in batches))


@contextlib.contextmanager
def open_arrow(path: Path) -> Iterator[tuple[Any, Iterable[Any]]]:
    """The schema and the batches of an arrow file: of the stream format, which `datasets` writes, or the file format,
    which is also called Feather. Raises DataError."""
    try:
        with pa.memory_map(str(path)) as source:
            if source.read(6) == b"ARROW1":
                file = pa.ipc.open_file(source)
                yield file.schema, (file.get_batch(number) for number in range(file.num_record_batches))
            else:
                source.seek(0)
                stream = pa.ipc.open_stream(source)
                yield stream.schema, stream
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable arrow file: {explain(error)}") from error


def _check_column(path: Path, column: str, schema: Any) -> None:
    if column not in schema.names:
        raise explain_missing_column(str(path), column, schema.names)
    kind = schema.field(column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(value) or pa.types.is_large_string(value)):
        raise DataError(f"{path}: the column {column!r} does not hold strings but {kind}")


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
                raise DataError(f"{where}: {column!r} is not a string but null")
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
"""What reads a file, by its suffix."""

LINES = (".txt", ".md", ".jsonl", ".ndjson", ".json-lines")
COMPRESSED = (".gz", ".zst")
ACCEPTED = f"{', '.join(READERS)}; all but the last two also compressed ({', '.join(COMPRESSED)})"
"""The suffixes that are accepted, for messages."""
