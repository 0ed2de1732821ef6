"""Tables in files: CSV and TSV, as W&B writes them too, JSON and JSON lines, parquet and arrow."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.addons.judging.rows import NAME, STEP, Rows, collect, parse_cell, read_frame
from ablate.config.errors import DataError
from ablate.config.formatting import join_first
from ablate.config.lazy import postpone_imports

with postpone_imports():  # half of the time that a verdict on a frame would take
    from ablate.data import files, readers

SUFFIXES = (".csv", ".tsv", ".txt", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow", ".feather")
_DATABASES = (".db", ".sqlite", ".sqlite3")
_DELIMITERS = ",\t;|"
_COUNTED = " (rows are counted from the line after that with the names of the columns)"
_CUT = "The last line of {} is cut, as of a log that is still written, and was left out."


def read_files(patterns: Sequence[str]) -> Rows:
    """Return the rows of the files that `patterns` name, one after the other; of several, the column `file` says which.
    Raises DataError."""
    if databases := [pattern for pattern in patterns if Path(pattern).suffix in _DATABASES]:
        url = f"sqlite:///{databases[0]}"
        raise DataError(
            f"{databases[0]} is a database, not a table. Of Optuna, name its study: optuna:{url}/STUDY; of MLflow, set "
            f"MLFLOW_TRACKING_URI={url} and name the experiment: mlflow:NAME"
        )
    paths = files.find_files(patterns, lambda path: _find_suffix(path) in SUFFIXES, ", ".join(SUFFIXES))
    tables = []
    for path in paths:
        try:
            tables.append(_read_file(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {files.explain(error)}") from None
    if len(tables) == 1:
        return tables[0]
    rows = (
        {"file": path.stem, **dict(zip(table.columns, values, strict=True))}
        for path, table in zip(paths, tables, strict=True)
        for values in zip(*table.columns.values(), strict=True)
    )
    return collect(f"{len(paths)} files", rows, told=[text for table in tables for text in table.told])


def _find_suffix(path: Path) -> str:
    return (path.with_suffix("") if path.suffix.lower() in readers.COMPRESSED else path).suffix.lower()


def _read_file(path: Path) -> Rows:
    suffix = _find_suffix(path)
    if suffix in (".parquet", ".arrow", ".feather"):
        with readers.open_table(path) as (_, batches):
            return collect(path.name, (row for _, row in readers.read_table(path, batches)), file=path)
    if suffix in (".jsonl", ".ndjson"):
        return _read_json_lines(path)
    if suffix == ".json":
        return _read_json(path)
    return _read_csv(path)


def _read_json_lines(path: Path) -> Rows:
    """Return the rows of JSON lines. A last line without an end that is no JSON was cut: the log is still written."""
    rows, told = list[dict[str, Any]](), list[str]()
    try:
        for _, row in readers.read_json_lines(path, '{"arm": "pre", "seed": 1, "value": 2.1}'):
            rows.append(row)
    except DataError as error:
        *_, (last, text, _) = readers.read_lines(path)
        if text.endswith("\n") or not str(error).startswith(f"{path}:{last}:"):
            raise
        told.append(_CUT.format(path.name))
    return collect(path.name, rows, told=told, file=path)


def _read_json(path: Path) -> Rows:
    text = "".join(line for _, line, _ in readers.read_lines(path))
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}. JSON lines have the suffix .jsonl.") from None
    if isinstance(content, dict) and content and all(isinstance(values, list) for values in content.values()):
        return replace(read_frame(content), name=path.name, file=path)
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        return collect(path.name, content, file=path)
    raise DataError(
        f"{path}: expected a list of objects, or an object of columns; found {readers.name_json_type(content)}."
    )


def _read_csv(path: Path) -> Rows:
    lines = [line for _, line, _ in readers.read_lines(path)]
    if not lines:
        raise DataError(f"{path} is empty: its first line is expected to name the columns.")
    delimiter = "\t" if _find_suffix(path) == ".tsv" else max(_DELIMITERS, key=lines[0].count)
    try:
        header, *rows = (row for row in csv.reader(lines, delimiter=delimiter) if any(cell.strip() for cell in row))
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path} is not a table: {files.explain(error)}.") from None
    header = [name.strip() or f"column {i}" for i, name in enumerate(header, 1)]
    if twice := [name for name, count in Counter(header).items() if count > 1]:
        raise DataError(f"{path}: the columns {join_first(twice, 5)} stand there twice: rename one of each.")
    told = []
    if rows and len(rows[-1]) < len(header) and not lines[-1].endswith("\n"):
        told.append(_CUT.format(path.name))
        rows.pop()
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise DataError(
                f"{path}: row {number} has {len(row)} cells, and the first line names {len(header)} columns{_COUNTED}. "
                f"Quote cells that contain {delimiter!r}."
            )
    columns = {name: [parse_cell(row[i]) for row in rows] for i, name in enumerate(header)}
    return _unpivot(Rows(path.name, columns, told, file=path, counted=_COUNTED))


def _unpivot(table: Rows) -> Rows:
    """Return the rows of a chart that was downloaded from W&B, which has a column for each run: `RUN - METRIC`, with
    its least and its largest value; any other table unchanged. Raises DataError for a chart of groups of runs."""
    found = [name for name in table.columns if {f"{name}__MIN", f"{name}__MAX"} <= {*table.columns}]
    if not found or not all(" - " in name for name in found):
        return table
    for name in found:
        ends = zip(table.columns[f"{name}__MIN"], table.columns[f"{name}__MAX"], strict=True)
        if any(low != high for low, high in ends):
            raise DataError(
                f"{table.name}: {name!r} is a group of runs, of which this chart has the mean, the least and the "
                "largest value, and no single run. Download it without groups, or the table of runs."
            )
    first = next(iter(table.columns))
    rows = [
        {NAME: name.rpartition(" - ")[0], STEP: step, name.rpartition(" - ")[2]: value}
        for name in found
        for step, value in zip(table.columns[first], table.columns[name], strict=True)
        if value is not None
    ]
    return collect(table.name, rows, told=table.told, file=table.file)
