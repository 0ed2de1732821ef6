"""The rows of a figure: one quantity of the layers of several models, averaged over seeds, as panels side by side on
one scale."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ablate.config.formatting import count_noun
from ablate.diagnostics.measures import Angular, BlockJacobian, Gradients, Measurement, Pruning, Result, Variance
from ablate.diagnostics.measures.angular import distance_matrix
from ablate.diagnostics.measures.block_jacobian import list_matrices, read_matrices, store_matrices
from ablate.plots import style
from ablate.plots.figure import Axis, Bar, Panel, Part, list_entries
from ablate.plots.layers import (
    WIDE,
    arrange_matrices,
    build_depth_panel,
    build_line_panel,
    list_bars,
    list_lines,
    map_distances,
)
from ablate.plots.marks import Line, Mark, Points
from ablate.verdict.intervals import Estimate, bound_mean

KEYS = ("update", "layer", "distance")
"""The columns that identify a row; all others are its numbers."""
LEVEL = 0.05
"""1 - LEVEL is the confidence of the intervals, of each number alone."""
ERROR = "_error"
"""Suffix of a column's name: in a measurement its standard error within the model, in a mean over seeds the half width
of the interval."""


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
    t as COLUMN_error. A mean of numbers that are not all finite is NaN. The facts have the mean of the `matrices`, if
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


When: TypeAlias = Literal["trained", "initial", "training"]
"""The weights that are shown: after training, before the first update, or both and those between."""
Tables: TypeAlias = Mapping[str, Numbers]
"""Label of a model or arm -> its numbers."""
ACROSS = 5  # panels side by side
THIN: dict[str, Any] = {"width": 0.6, "alpha": 0.5}  # of the lines of single seeds
COURSES = "coolwarm"  # from blue, layer 1, to red, the last


@dataclass(frozen=True)
class Row(ABC):
    """One quantity, drawn for several models."""

    measurement: type[Measurement]
    title: str
    when: When = "trained"

    @property
    def has_legend(self) -> bool:
        """Whether it needs the figure's legend, a colour for each model."""
        return False

    @property
    def key(self) -> str:
        """Its name among those of a figure."""
        return self.measurement.name if self.when == "trained" else f"{self.measurement.name}_{self.when}"

    @property
    def in_training(self) -> bool:
        """Whether it shows numbers that runs stored in training, rather than measurements on weights."""
        return self.when == "training"

    def list_columns(self, tables: Tables) -> Mapping[str, str]:
        """Return the columns that it draws, each with its label."""
        return dict([next(iter(self.measurement.columns.items()))])

    def applies(self, tables: Tables) -> bool:
        """Return whether there is something to draw of these models."""
        return True

    @abstractmethod
    def draw(self, tables: Tables) -> list[Part]:
        """Return the panels, the uppermost first."""


@dataclass(frozen=True)
class AngleMaps(Row):
    """The angular distance as a heat map for each model: layer l across, the n-th subsequent layer upwards, coloured
    from 0 to 1."""

    measurement: type[Measurement] = Angular
    title: str = "Angular distance (share of pi), mean over seeds"

    def draw(self, tables: Tables) -> list[Part]:
        panels = [
            map_distances(distance_matrix(table.mean), 1.0, state_seeds(name, table, "angular_distance"))
            for name, table in tables.items()
        ]
        return [Part(panels, ACROSS, self.title, Bar("", (0, 1)))]


@dataclass(frozen=True)
class RemovalBars(Row):
    """The performance without a layer less that of the whole model, as bars for each model, with a dot for each seed:
    the scores of tasks if there are any, else the accuracy of a classifier, else the loss."""

    measurement: type[Measurement] = Pruning
    title: str = "Performance without the layer, less that of the whole model (dots: each seed)"

    def list_columns(self, tables: Tables) -> Mapping[str, str]:
        columns = dict.fromkeys(
            name for table in tables.values() for row in table.mean.rows for name in row if not name.endswith(ERROR)
        )
        tasks = [name for name in columns if name not in ("layer", *Pruning.columns)]
        own = [name for name in ("accuracy_change", "loss_increase") if name in columns][:1]
        labels = {name: f"change of {name.removesuffix('_change')} without the layer" for name in tasks}
        return labels or {name: Pruning.columns[name] for name in own}

    def draw(self, tables: Tables) -> list[Part]:
        parts = []
        for number, (column, label) in enumerate(self.list_columns(tables).items()):
            panels: list[Panel] = []
            for name, table in tables.items():
                if not table.mean.has(column):
                    continue
                marks = list_bars({name: table.mean}, column)
                for seed in table.seeds.values() if table.seed_count else ():
                    marks.append(Points(seed.column("layer"), seed.column(column), "black", size=2))
                upwards = Axis(label if len(panels) % ACROSS == 0 else "")
                layers = Axis("removed layer", numbers="layers", grid=False)
                panels.append(Panel(marks, layers, upwards, state_seeds(name, table, column)))
            parts.append(Part(panels, ACROSS, self.title if number == 0 else "", share="y"))
        return parts


@dataclass(frozen=True)
class LayerLines(Row):
    """A number of each layer as lines over the layers, on one axis, logarithmic with `log`: all models in one panel,
    or, with `apart`, a panel for each."""

    apart: bool = False
    log: bool = True

    @property
    def has_legend(self) -> bool:
        return not self.apart

    def draw(self, tables: Tables) -> list[Part]:
        ((column, label),) = self.list_columns(tables).items()
        if not self.apart:
            return [Part([_build_lines(tables, column, label, self.log)], title=self.title, size=WIDE)]
        panels = []
        for number, (name, table) in enumerate(tables.items()):
            shown = label if number % ACROSS == 0 else ""
            panels.append(_build_lines({name: table}, column, shown, self.log, state_seeds(name, table)))
        return [Part(panels, ACROSS, self.title, share="y")]


@dataclass(frozen=True)
class DepthLines(Row):
    """A number of layer 1 over the number of layers, a line for each arm (see `name_lines`). For models of one depth it
    is not drawn."""

    def applies(self, tables: Tables) -> bool:
        return len({len(table.mean.rows) for table in tables.values()}) > 1

    def draw(self, tables: Tables) -> list[Part]:
        ((column, label),) = self.list_columns(tables).items()
        names = name_lines(tables)
        lines: dict[str, list[tuple[int, float]]] = {}
        for name, table in tables.items():
            lines.setdefault(names[name], []).append((len(table.mean.rows), table.mean.rows[0][column]))
        looks = style.choose_looks(lines)
        dots = [
            Points([len(seed.rows)], [seed.rows[0][column]], looks[names[name]][0], size=3)
            for name, table in tables.items()
            for seed in table.seeds.values()
        ]
        panel = build_depth_panel(lines, f"{label}, of layer 1", looks, dots)
        return [Part([replace(panel, entries=list_entries(looks))], title=self.title, size=WIDE)]


@dataclass(frozen=True)
class Courses(Row):
    """A number of each layer over the updates, one panel for each model, one line for each layer, from blue for layer
    1 to red for the last."""

    measurement: type[Measurement] = Variance
    title: str = "Mean over seeds, on one axis for all panels (thin: each seed)"
    when: When = "training"

    def draw(self, tables: Tables) -> list[Part]:
        ((column, label),) = self.list_columns(tables).items()
        deepest = int(max(row["layer"] for table in tables.values() for row in table.mean.rows))
        colours, panels = [style.pick_shade(k / max(1, deepest - 1), COURSES) for k in range(deepest)], []
        highest = max(seed_row[column] for t in tables.values() for s in t.seeds.values() for seed_row in s.rows)
        for number, (name, table) in enumerate(tables.items()):
            marks: list[Mark] = []
            for result, thin in [(table.mean, {}), *((seed, THIN) for seed in table.seeds.values())]:
                for layer in sorted({row["layer"] for row in result.rows}):
                    rows = [row for row in result.rows if row["layer"] == layer]
                    x, y = ([row[key] for row in rows] for key in ("update", column))
                    marks.append(Line(x, y, colours[int(layer) - 1], **thin))
            upwards = Axis(label if number % ACROSS == 0 else "", limits=(0, 1.05 * highest))
            panels.append(Panel(marks, Axis("update", grid=False), upwards, state_seeds(name, table)))
        bar = Bar("layer", (1, deepest), colours=COURSES)
        return [Part(panels, ACROSS, self.title, bar, share="y")]


@dataclass(frozen=True)
class JacobianMaps(Row):
    """The Jacobian of layers as heat maps of |J|, a row of maps for each model."""

    measurement: type[Measurement] = BlockJacobian
    title: str = "|J| of each layer for one token, averaged over tokens and seeds"

    def draw(self, tables: Tables) -> list[Part]:
        maps = {state_seeds(name, table): list_matrices(table.mean) for name, table in tables.items()}
        return [arrange_matrices(maps, "|J|", self.title)]


GRADIENTS = LayerLines(Gradients, "Gradient norm of each layer, after training (thin: each seed)")
INITIAL_GRADIENTS = LayerLines(
    Gradients, "Gradient norm of each layer, before the first update (thin: each seed)", "initial"
)


def _build_lines(tables: Tables, column: str, label: str, log: bool, title: str = "") -> Panel:
    """Return the mean over seeds of each model, and a thin line for each seed: the interval of few seeds would reach
    below zero on a logarithmic axis."""
    looks, means = choose_looks(tables), {name: drop_errors(table.mean) for name, table in tables.items()}
    marks = list_lines(means, column, looks)
    for name, (colour, _) in looks.items():
        for seed in tables[name].seeds.values() if tables[name].seed_count else ():
            marks.append(Line(seed.column("layer"), seed.column(column), colour, **THIN))
    return build_line_panel(means, column, label, log, marks, title)


def name_lines(tables: Tables) -> dict[str, str]:
    """Return label of a model -> the line that joins it with its other depths: its arm, of whichever sweep, if that is
    there once at each depth; else its arm in its sweep; where that too is there twice at a depth, the model alone."""
    lines = {label: table.arm or label for label, table in tables.items()}
    full = {label: f"{table.sweep}/{table.arm}" if table.sweep else label for label, table in tables.items()}
    for longer in (full, {label: label for label in tables}):
        counts = Counter((lines[label], len(table.mean.rows)) for label, table in tables.items())
        twice = {line for (line, _), count in counts.items() if count > 1}
        lines = {label: longer[label] if line in twice else line for label, line in lines.items()}
    return lines


def choose_looks(tables: Tables) -> style.Looks:
    """Return the colour and marker of each model: of lines through several depths (see `name_lines`), the colour of the
    line and a marker for each depth."""
    lines = name_lines(tables)
    arms = style.choose_looks(dict.fromkeys(lines.values()))
    depths = sorted({len(table.mean.rows) for table in tables.values()})
    looks = {
        name: (arms[lines[name]][0], style.MARKERS[depths.index(len(table.mean.rows)) % len(style.MARKERS)])
        for name, table in tables.items()
    }
    return looks if len(set(looks.values())) == len(tables) > len(arms) else style.choose_looks(tables)


def state_seeds(name: str, table: Numbers, column: str = "") -> str:
    """Return the title of a panel: the model, its number of seeds, and the widest 95 % interval of `column`."""
    seeds = table.seed_count
    if not seeds:
        return name
    text = f"{name}, {count_noun(seeds, 'seed')}"
    halves = [half for half in table.mean.column(f"{column}{ERROR}") if half > 0]
    return f"{text}, ± {max(halves):.2g} at most" if halves else text
