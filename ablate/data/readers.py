"""Readers of text, JSON lines, parquet and arrow files, line by line or row by row; errors name file and line."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ablate.config.errors import DataError, did_you_mean
from ablate.data.files import explain

COMPRESSED = (".gz", ".zst")


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading bytes, decompressed according to its suffix."""
    if path.suffix.lower() not in COMPRESSED:
        return path.open("rb")
    return cast(BinaryIO, io.BufferedReader(pa.input_stream(str(path), compression="detect")))


def read_lines(path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield (line number from 1, line with its end, bytes) of a UTF-8 file. Raises DataError."""
    with open_file(path) as file:
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


def read_json_lines(path: Path, example: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, object) of each line of a file of JSON lines; messages show `example`. Raises DataError."""
    for number, line, _ in read_lines(path):
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


def name_json_type(value: object) -> str:
    """Return the JSON name of a value's type."""
    names = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null", str: "a string"}
    return names.get(type(value), "a number")


def explain_missing_column(where: str, column: str, columns: list[str]) -> DataError:
    """Return the error of a missing column, with the existing columns."""
    there = ", ".join(map(repr, columns)) or "none"
    return DataError(f"{where}: no column {column!r}. Columns: {there}.{did_you_mean(column, columns)}")


@contextlib.contextmanager
def open_parquet(path: Path, columns: list[str] | None = None) -> Iterator[tuple[Any, Iterable[Any]]]:
    """Yield the schema of a parquet file and its batches, of `columns` or of all. Raises DataError."""
    try:
        with pq.ParquetFile(path) as file:
            yield file.schema_arrow, _validate(file.iter_batches(batch_size=1024, columns=columns))
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {explain(error)}") from error


@contextlib.contextmanager
def open_arrow(path: Path) -> Iterator[tuple[Any, Iterable[Any]]]:
    """Yield the schema of an arrow file and its batches. Raises DataError.

    The file is of the stream format, which `datasets` writes, or of the file format, also called Feather.
    """
    try:
        with pa.memory_map(str(path)) as source:
            if source.read(6) == b"ARROW1":
                file = pa.ipc.open_file(source)
                yield file.schema, _validate(file.get_batch(number) for number in range(file.num_record_batches))
            else:
                source.seek(0)
                stream = pa.ipc.open_stream(source)
                yield stream.schema, _validate(stream)
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable arrow file: {explain(error)}") from error


def _validate(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches after validating each: pyarrow ends the process if a damaged batch is used. Raises
    ArrowInvalid. Text that is not UTF-8 is left to the reader, which knows the row."""
    for batch in batches:
        batch.validate()
        for column in batch.columns:
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                if "UTF8" not in str(error):
                    raise
        yield batch
