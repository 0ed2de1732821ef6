"""The table of downstream scores, and the sentences below it."""

from __future__ import annotations

from ablate.config.formatting import count_noun, format_number, format_uncertain
from ablate.reports.downstream import Downstream
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.verdict.questions import SeedDifference
from ablate.verdict.sequential import LEAST


def tabulate(downstream: Downstream, baseline: str) -> list[Section]:
    """Return the table of the scores; nothing if no run was evaluated."""
    rows, others = downstream.rows, [arm for arm in downstream.runs if arm != baseline]
    if not rows:
        return []
    shown = [downstream.list_shown(row) for row in rows]
    columns = [
        Column("task", [row.task for row in rows], words=True),
        Column("shots", [str(row.shots) for row in rows]),
        Column("metric", [row.metric for row in rows], words=True),
        Column("n", [f"{row.n:,}" for row in rows]),
        *(Column(arm, [format_number(row.means.get(arm)) for row in rows]) for arm in downstream.runs),
        *(
            Column(
                f"{arm}, difference to {baseline}",
                [_format(row.differences.get(arm), arm in own) for row, own in zip(rows, shown, strict=True)],
            )
            for arm in others
        ),
    ]
    strong = frozenset(i for i, own in enumerate(shown) if own)
    return [Section("Downstream tasks", Table(columns, strong), _state_basis(downstream, baseline, bool(strong)))]


def _format(difference: SeedDifference | None, shown: bool) -> str:
    if difference is None:
        return NOTHING
    if difference.interval is None:
        return format_uncertain(difference.mean, None, sign=True)
    low, high = difference.interval
    return f"{difference.mean:+.3f} [{low:+.3f}, {high:+.3f}]{' *' if shown else ''}"


def _state_basis(downstream: Downstream, baseline: str, any_shown: bool) -> list[str]:
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
        if d.n_seeds < LEAST:
            sentences.append(
                f"{arm} and {baseline}: {count_noun(d.n_seeds, 'seed')} scored for both; a verdict needs {LEAST} "
                "seeds, as questions do not show the variation between seeds."
            )
        elif left := downstream.left_out.get(arm):
            sentences.append(
                f"The difference of {arm} to {baseline} leaves out {count_noun(left, 'seed')} of {d.n_seeds + left}, "
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
