"""Figures of the papers: measure the models of a figure, average them over seeds, and draw them."""

from __future__ import annotations

import contextlib
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.config import plugins
from ablate.config.errors import AblateError
from ablate.diagnostics.figures.catalog import LayerFigure, find_figure
from ablate.diagnostics.figures.groups import Group, find_groups
from ablate.diagnostics.figures.rows import ERROR, KEYS, Numbers, Row, average, choose_looks, state_seeds
from ablate.diagnostics.kinds import PaperFigure
from ablate.diagnostics.measures import Measurement, Pruning, Result
from ablate.diagnostics.measures.base import TRAINING, parse_history, read_measurements
from ablate.diagnostics.measuring import MetricSource, Settings, join_notes, measure_model
from ablate.diagnostics.opening import has_initial
from ablate.diagnostics.run import choose_folder, make_folder
from ablate.plots.drawing import save
from ablate.plots.figure import Entry, Figure, list_entries
from ablate.sweeps.runs import Run


@dataclass(frozen=True)
class Drawing:
    """A figure of the papers, drawn."""

    name: str
    rows: dict[str, dict[str, Numbers]]
    """Quantity -> label of a model or arm -> its numbers. The quantity is the measurement, with _initial if it was
    taken before the first update, _training if it was taken in training."""
    folder: Path
    files: list[Path]
    notes: list[str]
    """Missing seeds, and remarks on the paper's figure."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is null."""
        rows = {
            key: {
                label: {
                    "seeds": {str(seed): result.to_dict()["rows"] for seed, result in one.seeds.items()},
                    "mean": one.mean.to_dict(),
                }
                for label, one in numbers.items()
            }
            for key, numbers in self.rows.items()
        }
        files = [str(file) for file in self.files]
        return {"figure": self.name, "rows": rows, "notes": self.notes, "folder": str(self.folder), "files": files}


def figure(
    name: str,
    of: str | Sequence[str],
    *,
    output: str | Path | None = None,
    benchmarks: MetricSource | None = None,
    storage: str | None = None,
    **settings: Any,
) -> Drawing:
    """Draw a figure of the papers, of the fresh seeds of sweeps or of other models.

    Args:
        name: of the figure, such as removal, or of one of a paper, such as mixln-3.
        of: names of sweeps, whose arms are drawn, sweep:NAME/ARM, or any other model that `ablate.diagnose` accepts,
            each with an optional prefix LABEL=.
        output: the folder for figure and numbers; by default one of the store.
        benchmarks: scores for layer removal, such as tasks of lm-evaluation-harness.
        storage: Optuna's storage of the sweeps; by default that of the store.
        settings: how the models are measured, as in `ablate.diagnose`: tokens, data, positions, batch_tokens, device,
            dtype, seed, trust_remote_code.

    Each checkpoint is measured as `ablate.diagnose` does it, and stored measurements are read. Raises AblateError.
    """
    plugins.load()
    names = [of] if isinstance(of, str) else list(of)
    kind, paper = find_figure(name)
    if benchmarks and not any(row.measurement is Pruning for row in kind.rows):
        raise AblateError(f"--tasks is for layer removal, which {kind.name} does not show.")
    measuring = Settings(**settings)
    needs = not all(row.in_training for row in kind.rows)
    sources = find_groups(names, storage, checkpoints=needs)
    _refuse_foreign(kind, sources.groups)
    folder = make_folder(Path(output).expanduser() if output else choose_folder([name, *names], "figures"))
    courses = {
        row.key: read_courses(kind.name, row.measurement, sources.groups) for row in kind.rows if row.in_training
    }
    rows: dict[str, dict[str, Numbers]] = {row.key: {} for row in kind.rows}
    notes: dict[str, list[str]] = {group.label: [] for group in sources.groups}
    for group in sources.groups:
        taken: dict[str, dict[int | None, Result]] = {key: {} for key in rows}
        for seed, model in group.models.items():
            results, own = _measure(kind, group.label, model, measuring, benchmarks)
            for key, result in {**results, **{key: course[model] for key, course in courses.items()}}.items():
                taken[key][seed] = result
            notes[group.label] += own
        for key, seeds in taken.items():
            rows[key][group.label] = Numbers(seeds, average(list(seeds.values())), group.arm, group.sweep)
    told = [*sources.notes, *_describe_paper(paper, benchmarks), *join_notes(notes)]
    return _write(kind, Drawing(kind.name, rows, folder, [], list(dict.fromkeys(told))))


def _refuse_foreign(kind: type[LayerFigure], groups: Sequence[Group]) -> None:
    """Raise AblateError if the figure shows initial weights, and they are not known of some model."""
    names = [name for group in groups for name in group.models.values() if not has_initial(name)]
    if names and any(row.when == "initial" for row in kind.rows):
        raise AblateError(
            f"{kind.name} shows models before and after training, and {', '.join(names)} has one of the two. "
            "Give sweeps or runs."
        )


def _describe_paper(paper: PaperFigure | None, benchmarks: MetricSource | None) -> list[str]:
    if paper is None:
        return []
    notes = [f"{paper.title}, in the paper: {paper.models}."]
    if paper.tasks and benchmarks is None:
        notes.append(f"There the performance is that on {', '.join(paper.tasks)}: --tasks {','.join(paper.tasks)}.")
    return [*notes, f"{paper.note[0].upper()}{paper.note[1:]}."] if paper.note else notes


def _measure(
    kind: type[LayerFigure],
    label: str,
    name: str,
    settings: Settings,
    benchmarks: MetricSource | None,
) -> tuple[dict[str, Result], list[str]]:
    """Return (row -> the numbers of the model `name`, notes) for all rows that its weights show."""
    results: dict[str, Result] = {}
    notes: list[str] = []
    for when, model in (("trained", name), ("initial", f"init:{name}")):
        keys: dict[type[Measurement], str] = {row.measurement: row.key for row in kind.rows if row.when == when}
        if not keys:
            continue
        scores = benchmarks if Pruning in keys else None
        measured = measure_model(model, list(keys), settings, label=label, benchmarks=scores, require_all=True)
        notes += measured.notes
        results |= {key: measured.results[one.name] for one, key in keys.items()}
    return results, notes


def _write(kind: type[LayerFigure], drawing: Drawing) -> Drawing:
    """Write the figure as PNG and SVG, the numbers as CSV and JSON."""
    table, numbers = (drawing.folder / f"{kind.name}{suffix}" for suffix in (".csv", ".json"))
    pictures = save(draw(kind, drawing.rows), drawing.folder)
    _write_table(table, drawing)
    drawing = replace(drawing, files=[*pictures, table, numbers])
    numbers.write_text(json.dumps(drawing.to_dict(), allow_nan=False) + "\n", encoding="utf-8")
    return drawing


def draw(kind: type[LayerFigure], rows: Mapping[str, Mapping[str, Numbers]]) -> Figure:
    """Return the figure: its rows of panels below one another, and a legend for those that need one."""
    drawn: list[Row] = [row for row in kind.rows if row.applies(rows[row.key])]
    entries: list[Entry] = []
    if with_lines := next((row for row in drawn if row.has_legend), None):
        tables = rows[with_lines.key]
        entries = list_entries(
            {state_seeds(label, tables[label]): look for label, look in choose_looks(tables).items()}
        )
    return Figure(kind.name, kind.title, [part for row in drawn for part in row.draw(rows[row.key])], entries=entries)


def _write_table(file: Path, drawing: Drawing) -> None:
    """Write a line for each number: its mean over seeds, with the ends of its interval, and its number of seeds."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["quantity", "model", *KEYS, "number", "mean", "low", "high", "seeds"])
        for key, numbers in drawing.rows.items():
            for label, one in numbers.items():
                for row in one.mean.rows:
                    for column in (name for name in row if name not in KEYS and not name.endswith(ERROR)):
                        mean, half = row[column], row.get(f"{column}{ERROR}")
                        ends = ("", "") if half is None else (mean - half, mean + half)
                        place = [row.get(name, "") for name in KEYS]
                        writer.writerow([key, label, *place, column, mean, *ends, one.seed_count or ""])


def read_courses(figure: str, kind: type[Measurement], groups: Sequence[Group]) -> dict[str, Result]:
    """Return run -> the first number of `kind` during its training, a row for each update and layer, for all runs of
    `groups`. Raises AblateError if some were not measured in training, which cannot be made up for."""
    foreign = [group.label for group in groups if not group.runs]
    courses = {str(run.run_id): _read_course(run, kind) for group in groups for run in group.runs}
    lacking = [group.label for group in groups if any(not courses[str(run.run_id)].rows for run in group.runs)]
    problems = []
    if foreign:
        problems.append(f"{', '.join(foreign)}: {figure} shows what is measured in training. Give the name of a sweep.")
    if lacking:
        problems.append(
            f"{', '.join(lacking)}: {figure} shows what is measured in training, and the runs were not. Set "
            f"trainer.diagnose.what={kind.name} in the sweep's file, trainer.diagnose.interval for how often, and run "
            "it with --fresh."
        )
    if problems:
        raise AblateError("\n".join(problems))
    return courses


def _read_course(run: Run, kind: type[Measurement]) -> Result:
    """Return the numbers of one run; without rows if it has none, or was measured only once."""
    from mlflow.exceptions import MlflowException

    column = next(iter(kind.columns))
    content: dict[str, Any] = {"history": {}}
    with contextlib.suppress(MlflowException, OSError, ValueError):
        content = next(read_measurements(str(run.run_id), (TRAINING,)), content)
    course = parse_history(content, column)
    if len(course) < 2:
        return Result([])
    return Result(
        [
            {"update": seen / run.items_per_update, "layer": layer, column: value}
            for seen, values in sorted(course.items())
            for layer, value in enumerate(values, 1)
        ]
    )
