"""Readers of text, JSON lines, parquet and arrow files, line by line or row by row; errors name file and line."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ablate.config.errors import DataError, did_you_mean
from ablate.data.files import explain

COMPRESSED = (".gz", ".zst", ".bz2", ".xz", ".lz4")
"""The suffixes of compressed text. What a file is, its first bytes tell: a suffix may be missing, or be left over."""
_COMPRESSIONS = {
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}
"""The first bytes of a compressed file -> its compression."""
_HEAD = 8000
"""Bytes at the start of a file that are examined, as git does to tell text from other files."""
_CONVERT = "Text in another encoding must be converted: iconv -f utf-16 (or latin1) -t utf-8 OLD > NEW"


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """Open a file of text for reading bytes, decompressed if its first bytes say so, whatever its name. Raises
    DataError for a file that is not text in UTF-8, and OSError for one that is damaged."""
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(path.open("rb"))
        try:
            if compression := _find_compression(file.peek(_HEAD)):
                unpack = (
                    lzma.LZMAFile if compression == "xz" else partial(pa.CompressedInputStream, compression=compression)
                )
                file = io.BufferedReader(stack.enter_context(unpack(file)), _HEAD)
            _check_text(path, file.peek(_HEAD)[:_HEAD])
            yield file
        except (lzma.LZMAError, EOFError) as error:
            raise OSError(explain(error)) from None


def _find_compression(head: bytes) -> str | None:
    """Return the compression of a file with the first bytes `head`; None if it has none."""
    if head.startswith(b"BZh") and head[4:10] != b"1AY&SY":  # a text may begin with these three letters
        return None
    return next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None)


def _check_text(path: Path, head: bytes) -> None:
    """Raise DataError unless a file with the first bytes `head` may be text in UTF-8."""
    if head.startswith(b"version https://git-lfs.github.com/"):
        raise DataError(f"{path} is a pointer of Git LFS and not the file itself, which comes by git lfs pull.")
    if head.startswith(b"%PDF-"):  # which may have no zero, and begins with ASCII
        raise DataError(f"{path} is a PDF and not text in UTF-8.")
    if _find_compression(head) or b"\0" in head:
        why = "it is compressed twice" if _find_compression(head) else f"byte {head.index(0) + 1} is zero"
        raise DataError(f"{path} is not text in UTF-8: {why}. {_CONVERT}")


def read_lines(path: Path) -> Iterator[tuple[int, str, int]]:
    """Yield (line number from 1, line with its end, bytes) of a UTF-8 file. Raises DataError, and OSError."""
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield number, line.decode("utf-8"), len(line)
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{number}: byte 0x{line[error.start]:02x} at position {error.start + 1} of the line is not "
                    f"UTF-8, which is expected. {_CONVERT}"
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


def explain_missing_column(where: str, column: str, columns: Collection[str], hint: str = "") -> DataError:
    """Return the error of a missing column, with the existing columns and a `hint`."""
    there = ", ".join(map(repr, columns)) or "none"
    return DataError(f"{where}: no column {column!r}. Columns: {there}.{hint}{did_you_mean(column, columns)}")


def get_text(where: str, row: Mapping[str, Any], column: str, hint: str = "") -> str:
    """Return the text in a column of a row. Raises DataError, with the `hint` for a missing column."""
    if column not in row:
        raise explain_missing_column(where, column, row.keys(), hint)
    text = row[column]
    if not isinstance(text, str):
        raise DataError(f"{where}: {column!r} must be a string, but is {name_json_type(text)}")
    return text


def count_bytes(where: str, text: str) -> int:
    """Return the UTF-8 bytes of a text. Raises DataError for text that is not Unicode."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise DataError(f"{where}: the text has a lone surrogate (half a character) and is not valid Unicode") from None


@contextlib.contextmanager
def open_table(path: Path, column: str | None = None) -> Iterator[tuple[Any, Iterable[Any]]]:
    """Yield the schema of a parquet or arrow file and its batches, of a `column` or of all, in plain types
    (`simplify`). Raises DataError.

    An arrow file is of the stream format, which `datasets` writes, or of the file format, also called Feather.
    """
    if path.suffix.lower() == ".arrow":
        with _open_ipc(path) as (schema, batches, _):
            own = batches if column not in schema.names else (batch.select([column]) for batch in batches)
            yield simplify(schema), _validate(own)
        return
    try:
        with pq.ParquetFile(path) as file:
            columns = [column] if column is not None else None
            yield simplify(file.schema_arrow), _validate(file.iter_batches(batch_size=1024, columns=columns))
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {explain(error)}") from error


def read_table(path: Path, batches: Iterable[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (location, values by column) of each row. Raises DataError for text that is not UTF-8."""
    number = 0
    for batch in batches:
        for row in range(batch.num_rows):
            number += 1
            where, values = f"{path}: row {number}", {}
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    values[name] = column[row].as_py()
                except UnicodeDecodeError as error:
                    text = f"byte 0x{error.object[error.start]:02x} of {name!r} is not UTF-8, which is expected"
                    raise DataError(f"{where}: {text}") from None
            yield where, values


def is_plain_stream(path: Path) -> bool:
    """Return whether an arrow file is of the stream format and its types are plain. Raises DataError."""
    with _open_ipc(path) as (schema, _, is_stream):
        return is_stream and bool(schema.equals(simplify(schema)))


@contextlib.contextmanager
def _open_ipc(path: Path) -> Iterator[tuple[Any, Iterable[Any], bool]]:
    """Yield (schema, batches, whether it is of the stream format) of an arrow file. Raises DataError."""
    try:
        with pa.memory_map(str(path)) as source:
            if source.read(6) == b"ARROW1":
                file = pa.ipc.open_file(source)
                yield file.schema, (file.get_batch(number) for number in range(file.num_record_batches)), False
            else:
                source.seek(0)
                stream = pa.ipc.open_stream(source)
                yield stream.schema, stream, True
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
        yield pa.RecordBatch.from_arrays(list(map(_simplify_array, batch.columns)), schema=simplify(batch.schema))


def simplify(schema: pa.Schema) -> pa.Schema:
    """Return a schema in the types that all libraries read: dictionaries and runs as their values, views and large
    values as large ones, extensions as what they store."""
    fields = [field.with_type(_simplify_type(field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def _simplify_type(kind: Any) -> Any:
    types = pa.types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _simplify_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _simplify_type(kind.storage_type)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.large_binary()
    if types.is_struct(kind):
        return pa.struct([field.with_type(_simplify_type(field.type)) for field in kind])
    if types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_simplify_type(kind.value_type)))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_simplify_type(kind.value_type)), kind.list_size)
    if types.is_large_list(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return pa.large_list(kind.value_field.with_type(_simplify_type(kind.value_type)))
    return kind


def _simplify_array(array: Any) -> Any:
    plain = _simplify_type(array.type)
    if plain == array.type:
        return array
    try:
        changed = array.cast(plain)
        changed.validate(full=True)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.array(array.to_pylist(), plain)  # the library casts no runs, and views in lists wrongly
    return changed
