"""The report on a terminal: best of each arm, all trials, importance, and what follows from them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.reporting import confirmation, findings
from ablate.reporting.contents import Contents
from ablate.reporting.importance import MINIMUM, finished
from ablate.reporting.words import searched, short_names
from ablate.sweeping.records import FINISHED, STATUSES, SweepRecord, TrialRecord
from ablate.words import duration, number, plural, setting, settings

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_COLOURS = {"completed": "green", "running": "cyan", "diverged": "red", "failed": "red", "pruned": "yellow"}
Row = Sequence[str]


def render(report: Contents, console: Console) -> None:
    """Prints the report. At 80 columns no number is cut: what does not fit is folded, settings share one column."""
    record = report.record
    objective = record.spec.objective
    _title(console, f"{record.title}: {objective.metric}, {objective.direction}")
    if report.confirmed:
        _title(console, "The best settings of each arm on fresh seeds: mean +- 95 % interval")
        _fit(console, lambda level: _confirmed_table(report, level))
        _title(console, "The search, which flatters its best")
    _fit(console, lambda level: _best_table(record, level))
    _say(console, "time: the median of the completed trials. " + _rare(record))
    _title(console, f"All {plural(sum(map(len, record.trials.values())), 'trial')}")
    _fit(console, lambda level: _trial_table(record, level))
    _reasons(console, record)
    _importance(console, report)
    _title(console, "What this shows")
    _say(console, report.verdict)
    spreads = [text for arm in record.trials if (text := findings.spread_text(record, arm))]
    if spreads:
        _say(console, "\nWhat the settings do within an arm, best to worst:")
        for text in spreads:
            _say(console, text, indent=2)
    for note in report.notes:
        _say(console, f"\nNote: {note}")
    _places(console, report)


def plain(report: Contents, width: int = 100) -> str:
    """What `render` prints, without colours, `width` characters wide."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False, force_terminal=False)
    with console.capture() as capture:
        render(report, console)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


# ---------------------------------------------------------------------------------------------------- tables


def _best_table(record: SweepRecord, level: int) -> Table:
    metric = record.spec.objective.metric
    best = {arm: record.best(arm) for arm in record.trials}
    others = list(dict.fromkeys(m for trial in best.values() if trial for m in sorted(trial.metrics) if m != metric))
    counts = {arm: record.counts(arm) for arm in record.trials}
    rare = [s for s in ("pruned", "diverged", "failed") if any(c[s] for c in counts.values())]
    header = ["arm", "finished", metric, *others, "time"]
    rows = []
    for arm, trial in best.items():
        done = f"{findings.finished_of(record, arm)}/{record.target(arm)}"
        values = (
            [number(trial.value), *(number(trial.metrics.get(m)) for m in others)]
            if trial
            else ["-"] * (1 + len(others))
        )
        time = duration(findings.seconds_of(record, arm))
        odd = [str(counts[arm][s]) for s in rare]
        rows.append(
            [arm, done, *values, time, *_params(record, trial, level), *(["/".join(odd)] if level and odd else odd)]
        )
    return _table(
        [*header, *_param_header(record, level), *(["/".join(rare)] if level and rare else rare)], rows, level
    )


def _confirmed_table(report: Contents, level: int) -> Table:
    record, rows = report.record, []
    baseline = record.spec.compared_with
    for arm, found in report.confirmed.items():
        d = found.difference
        row = [arm, f"{found.estimate.n if found.estimate else 0}/{found.target}"]
        row += [confirmation.spoken(found.estimate) if found.estimate else "-", str(found.diverged)]
        row += [confirmation.spoken(d.estimate, sign=True) if d else "-"]
        row += [
            f"{d.adjusted_p:.2g}" if d and d.adjusted_p is not None else "-",
            *_params(record, record.best(arm), level),
        ]
        rows.append(row)
    header = ["arm", "n", record.spec.objective.metric, "diverged", f"less {baseline}", "p (Holm)"]
    return _table([*header, *_param_header(record, level)], rows, level)


def _trial_table(record: SweepRecord, level: int) -> Table:
    sign = findings.sign_of(record)
    header = ["arm", "trial", "status", record.spec.objective.metric, *_param_header(record, level), "updates", "time"]
    rows, styles = [], []
    for arm, trials in record.trials.items():
        order = sorted(trials, key=lambda t: (STATUSES.index(t.status), sign * (t.value or 0.0), t.number))
        for t in order:
            rows.append(
                [
                    arm,
                    str(t.number),
                    t.status,
                    number(t.value),
                    *_params(record, t, level),
                    str(t.step),
                    duration(t.seconds),
                ]
            )
            styles.append("bold" if t == record.best(arm) else "")
    return _table(header, rows, level, styles)


def _importance(console: Console, report: Contents) -> None:
    record = report.record
    paths = searched(record.spec)
    if not paths:
        return
    needed = f"it takes {MINIMUM} finished trials that differ."
    if not any(report.importance.values()):
        _say(console, f"\nNo importance yet: {needed}")
        return
    _title(console, "Importance of each searched parameter (fANOVA; shares of an arm sum to 1)")
    names = short_names(paths)
    rows = [
        [arm, str(finished(record, arm)), *(number(report.importance[arm].get(path), 2) for path in paths)]
        for arm in record.trials
    ]
    _fit(console, lambda level: _table(["arm", "n trials", *names.values()], rows, level))
    if few := [arm for arm in record.trials if not report.importance[arm] and record.spec.space(arm)]:
        _say(console, f"None for {findings.listed(few)}: {needed}")
    if any(len(values) > 1 for values in report.importance.values()):
        _say(console, "With few trials this is a rough order, not a measurement.")


def _table(header: Row, rows: Sequence[Row], level: int, styles: Sequence[str] = ()) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False, collapse_padding=True, header_style="bold")
    for i, name in enumerate(header):
        cells = [row[i] for row in rows]
        words = name in ("arm", "status", "settings")
        broken = name.replace("/", "/\n").replace("_", "_\n") if level else name
        table.add_column(
            Text(broken),
            justify="left" if words else "right",
            overflow="fold",
            min_width=max(len(word) for cell in [broken, *cells] for word in cell.split() or [""]),
        )
    for i, row in enumerate(rows):
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row), style=styles[i] if styles else None)
    return table


def _fit(console: Console, build: Callable[[int], Table]) -> None:
    """Prints the first of the tables that fits: as it is, with headers broken, with the settings in one column."""
    from rich.measure import Measurement

    unlimited = console.options.update(width=10_000)
    for level in (0, 1, 2):
        table = build(level)
        if level == 2 or Measurement.get(console, unlimited, table).maximum <= console.width:
            console.print(table)
            return


def _param_header(record: SweepRecord, level: int) -> list[str]:
    names = short_names(searched(record.spec))
    return list(names.values()) if level < 2 or not names else ["settings"]


def _params(record: SweepRecord, trial: TrialRecord | None, level: int) -> list[str]:
    names = short_names(searched(record.spec))
    params = trial.params if trial else {}
    if level < 2 or not names:
        return [setting(params[path]) if path in params else "-" for path in names]
    return [settings({path: params[path] for path in names if path in params}, names) or "-"]


# ---------------------------------------------------------------------------------------------------- sentences


def _rare(record: SweepRecord) -> str:
    counts = record.counts()
    if not any(counts[s] for s in ("pruned", "diverged", "failed")):
        return "No trial was pruned, diverged or failed." if any(counts[s] for s in FINISHED) else ""
    return ""


def _reasons(console: Console, record: SweepRecord) -> None:
    """Why trials diverged or failed, those of one arm and one reason together."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for trials in record.trials.values():
        for t in trials:
            if t.reason and t.status in ("diverged", "failed"):
                groups.setdefault((t.arm, t.status, t.reason), []).append(str(t.number))
    for (arm, status, reason), numbers in groups.items():
        _say(console, f"{arm} {findings.listed(numbers)} {status}: {reason}")


def _places(console: Console, report: Contents) -> None:
    _title(console, "Where it is")
    for path in report.figures:
        _say(console, _short(path), whole=True)
    _say(console, f"{_short(report.folder)}/report.json and table.txt", whole=True)
    where = report.mlflow
    if where.get("run_id"):
        _say(
            console,
            f'MLflow: run "report" of the experiment "{where["experiment"]}" at {where["tracking_uri"]}',
            whole=True,
        )
    else:
        _say(console, f'MLflow: the experiment "{where["experiment"]}" at {where["tracking_uri"]}', whole=True)
    _say(console, "Open it with: ablate ui")


def _short(path: Path) -> str:
    """Relative to the current folder where it lies below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _title(console: Console, text: str) -> None:
    _say(console, f"\n{text}", style="bold")


def _say(console: Console, text: str, style: str | None = None, whole: bool = False, indent: int = 0) -> None:
    """A paragraph; nothing in it is taken for markup. `whole` keeps paths on one line, to be copied."""
    from rich.padding import Padding
    from rich.text import Text

    if text:
        line: RenderableType = Padding(Text(text), (0, 0, 0, indent)) if indent else Text(text)
        console.print(line, style=style, soft_wrap=whole)
