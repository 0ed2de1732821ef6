"""Means over seeds of the numbers of a measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.diagnostics.measures import Result
from ablate.diagnostics.measures.block_jacobian import read_matrices, store_matrices
from ablate.verdict.intervals import Estimate, bound_mean

KEYS = ("update", "layer", "distance")
"""What identifies a row; all else in a row is a number of it."""
LEVEL = 0.05
"""1 - LEVEL is the confidence of the intervals, of each number alone."""
ERROR = "_error"
"""Of a column's name: in a measurement its standard error within the model, in a mean over seeds the half width of the
interval."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of one model or arm in a row of a figure."""

    seeds: Mapping[int | None, Result]
    """Seed -> its numbers; None for a model that is no seed of a sweep."""
    mean: Result
    """Over the seeds, with the half width of its 95 % interval as COLUMN_error."""
    arm: str = ""
    """The arm of a sweep, whose depths are one line; the user's name for it, if there is one."""
    sweep: str = ""
    """The title of its sweep; "" for a model that is not of a sweep."""

    @property
    def seed_count(self) -> int:
        """The number of seeds; 0 for a model that is no seed of a sweep."""
        return len([seed for seed in self.seeds if seed is not None])


def average(seeds: Sequence[Result]) -> Result:
    """Return the means of the numbers of `seeds`, row by row, with the half widths of their 95 % intervals of Student's
    t as COLUMN_error. A mean of numbers that are not all finite is NaN. Of the facts, the mean of the `matrices`, if
    there are any."""
    values: dict[tuple[tuple[str, float], ...], dict[str, list[float]]] = {}
    for result in seeds:
        for row in result.rows:
            columns = values.setdefault(tuple((key, row[key]) for key in KEYS if key in row), {})
            for column, value in row.items():
                if column not in KEYS and not column.endswith(ERROR):
                    columns.setdefault(column, []).append(value)
    rows = []
    for keys, columns in values.items():
        row = dict(keys)
        for column, numbers in columns.items():
            estimate = estimate_mean(numbers)
            row[column] = estimate.mean
            if estimate.half_width is not None:
                row[f"{column}{ERROR}"] = estimate.half_width
        rows.append(row)
    matrices = [read_matrices(result) for result in seeds if "matrices" in result.facts]
    return Result(rows, {"matrices": store_matrices(np.mean(matrices, axis=0).tolist())} if matrices else {})


def drop_errors(result: Result) -> Result:
    """Return a result without the columns of errors."""
    rows = [{key: value for key, value in row.items() if not key.endswith(ERROR)} for row in result.rows]
    return Result(rows, result.facts)


def estimate_mean(values: Sequence[float]) -> Estimate:
    """Return the mean of `values`, one for each seed, with its 95 % interval; NaN if one is not finite."""
    if not all(map(math.isfinite, values)):
        return Estimate(math.nan, None, None, len(values))
    return bound_mean(values, LEVEL)
