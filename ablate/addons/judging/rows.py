"""The rows of a source, as columns of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError

RUN, NAME, STEP, STATUS = "run_id", "run", "step", "status"
"""The columns that the readers of stores and logs write, besides those of the source."""


@dataclass
class Rows:
    """A table, as it was read."""

    name: str
    columns: dict[str, list[Any]]
    """None: there is no value, which is not the same as NaN."""
    told: list[str] = field(default_factory=list)
    """What was left out, in sentences."""
    maximize: bool | None = None
    """Whether more of its values is better; None: it does not say."""
    file: Path | None = None
    """The file, if it is one."""
    counted: str = ""
    """How rows are counted, as the end of a message that names some."""

    def __post_init__(self) -> None:
        self.columns = {name: [_to_plain(value) for value in values] for name, values in self.columns.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def keep(self, rows: Iterable[int]) -> Rows:
        """Return some of the rows."""
        kept = list(rows)
        return replace(self, columns={name: [values[i] for i in kept] for name, values in self.columns.items()})


def collect(name: str, rows: Iterable[Mapping[str, Any]], **more: Any) -> Rows:
    """Return the table of `rows`, each column -> value; mappings within become columns such as `config.lr`."""
    columns: dict[str, list[Any]] = {}
    for count, row in enumerate(rows, 1):
        for column, value in _flatten(row):
            columns.setdefault(column, [None] * (count - 1)).append(value)
        for values in columns.values():
            if len(values) < count:
                values.append(None)
    return Rows(name, columns, **more)


def _flatten(row: Mapping[Any, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def parse_cell(text: str) -> Any:
    """Return a number, text, or None for an empty cell."""
    text = text.strip()
    if not text:
        return None
    for kind in (int, float):
        try:
            return kind(text) if "_" not in text else text
        except ValueError:
            continue
    return text


def read_frame(frame: Any) -> Rows:
    """Return the rows of a pandas or polars frame, an Arrow table, a mapping of columns or a list of mappings. Raises
    DataError for anything else."""
    if isinstance(frame, (list, tuple)) and frame and all(isinstance(row, Mapping) for row in frame):
        return collect("the table", frame)
    if isinstance(frame, Mapping):
        columns = {str(name): list(values) for name, values in frame.items()}
    elif hasattr(frame, "to_pydict"):  # Arrow
        columns = dict(frame.to_pydict())
    elif hasattr(frame, "to_dicts"):  # polars
        columns = {name: frame[name].to_list() for name in frame.columns}
    elif hasattr(frame, "iloc") and hasattr(frame, "columns"):  # pandas
        columns = {str(name): _read_series(frame[name]) for name in frame.columns}
    else:
        raise DataError(
            "A table is expected: a frame of pandas or polars, a mapping of columns, a list of mappings, or the name "
            f"of a source such as 'runs.csv'; given: {type(frame).__name__}."
        )
    if len({len(values) for values in columns.values()}) > 1:
        told = ", ".join(f"{name}: {len(values)}" for name, values in columns.items())
        raise DataError(f"The columns of the table differ in their number of rows ({told}).")
    return Rows("the table", columns)


def _read_series(series: Any) -> list[Any]:
    """Return the values of a column of pandas. NaN among text is a missing value."""
    values = [_to_plain(value) for value in series.tolist()]
    is_text = any(isinstance(value, str) for value in values)
    return [None if is_text and value != value else value for value in values]


def _to_plain(value: Any) -> Any:
    """Return a number of numpy as one of Python, and what pandas calls missing as None."""
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value.item() if getattr(value, "ndim", None) == 0 else value
