"""The table of downstream scores, and the sentences below it."""

from __future__ import annotations

from collections.abc import Sequence

from ablate.config.formatting import count_noun, format_number, format_uncertain
from ablate.reports.downstream import Downstream, Row
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.verdict.questions import SeedDifference
from ablate.verdict.sequential import LEAST

MOST_COLUMNS = 6
"""Arms that have a column each."""


def tabulate(downstream: Downstream) -> list[Section]:
    """Return the table of the scores, with a column or, for many arms, a row for each arm; nothing if no run was
    evaluated."""
    if not downstream.rows:
        return []
    build = _build_wide if len(downstream.runs) <= MOST_COLUMNS else _build_long
    table = build(downstream)
    return [Section("Downstream tasks", table, _state_basis(downstream, bool(table.strong)))]


def _build_wide(downstream: Downstream) -> Table:
    """Return the table with a row for each metric."""
    rows = downstream.rows
    shown = [downstream.list_shown(row) for row in rows]
    columns = [
        *_describe(rows),
        *(Column(arm, [format_number(row.means.get(arm)) for row in rows]) for arm in downstream.runs),
        *(
            Column(
                f"{arm}, difference to {base}",
                [_format(row.differences.get(arm), arm in own) for row, own in zip(rows, shown, strict=True)],
            )
            for arm, base in downstream.baselines.items()
            if arm in downstream.runs
        ),
    ]
    return Table(columns, frozenset(i for i, own in enumerate(shown) if own))


def _build_long(downstream: Downstream) -> Table:
    """Return the table with a row for each metric and arm."""
    cells = [(row, arm) for row in downstream.rows for arm in row.means]
    shown = [arm in downstream.list_shown(row) for row, arm in cells]
    columns = [
        *_describe([row for row, _ in cells]),
        Column("arm", [arm for _, arm in cells], words=True),
        Column("mean", [format_number(row.means[arm]) for row, arm in cells]),
        Column(
            "difference to the baseline",
            [_format(row.differences.get(arm), strong) for (row, arm), strong in zip(cells, shown, strict=True)],
        ),
    ]
    return Table(columns, frozenset(i for i, strong in enumerate(shown) if strong))


def _describe(rows: Sequence[Row]) -> list[Column]:
    return [
        Column("task", [row.task for row in rows], words=True),
        Column("shots", [str(row.shots) for row in rows]),
        Column("metric", [row.metric for row in rows], words=True),
        Column("n", [f"{row.n:,}" for row in rows]),
    ]


def _format(difference: SeedDifference | None, shown: bool) -> str:
    if difference is None:
        return NOTHING
    if difference.interval is None:
        return format_uncertain(difference.mean, None, sign=True)
    low, high = difference.interval
    return f"{difference.mean:+.3f} [{low:+.3f}, {high:+.3f}]{' *' if shown else ''}"


def _state_basis(downstream: Downstream, any_shown: bool) -> list[str]:
    """Return the sentences below the table: the basis of the numbers, and the claims."""
    kinds = dict.fromkeys(downstream.searched, "a trial of the search")
    told = (f"{arm} {kinds.get(arm) or count_noun(n, 'fresh seed')}" for arm, n in downstream.runs.items())
    sentences = [f"n: number of questions. Runs: {', '.join(told)}."]
    compared = {arm: d for row in downstream.rows for arm, d in row.differences.items()}
    if downstream.family:
        sentences.append(
            "Differences are over questions and the seeds that both have; their intervals, in brackets, include the "
            f"variance of both. The error of 5 % covers {count_noun(downstream.family, 'comparison')}, including those "
            "of the objective in the whole file, and every look."
            + (" Bold and *: the interval excludes 0." if any_shown else " No difference is shown.")
        )
    for arm, d in compared.items():
        base = downstream.baselines[arm]
        if d.n_seeds < LEAST:
            sentences.append(
                f"{arm} and {base}: {count_noun(d.n_seeds, 'seed')} scored for both; a verdict needs {LEAST} "
                "seeds, as questions do not show the variation between seeds."
            )
        elif left := downstream.left_out.get(arm):
            sentences.append(
                f"The difference of {arm} to {base} leaves out {count_noun(left, 'seed')} of {d.n_seeds + left}, "
                "on which one of the two failed or was not scored."
            )
    tied = {
        f"{arm} on {row.task}": None
        for row in downstream.rows
        for arm, d in row.differences.items()
        if d.n_seeds >= LEAST and d.interval is None
    }
    if tied:
        sentences.append(
            "No interval if every question has the same difference on each seed, which does not show the variation "
            f"between seeds: {', '.join(tied)}."
        )
    if downstream.shared_start:
        sentences.append(f"{downstream.shared_start} Their differences are not bold.")
    return sentences
