"""The outcome of each run of a table: which rows are one run, how it ended, and what it is paired with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ablate.addons.judging.columns import Columns
from ablate.addons.judging.rows import Rows
from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import count_noun, format_setting, is_number, join_first, join_words
from ablate.verdict.outcomes import Outcome, classify

DIVERGED = ("diverged", "nan", "inf", "-inf")
"""Words of a status that always count as failed."""
_STUCK = ("stuck",)
_OPEN = ("running", "pending", "queued", "scheduled", "waiting", "starting", "created")
_BROKEN = (
    *("failed", "fail", "crashed", "crash", "error", "killed", "interrupted", "stopped", "canceled", "cancelled"),
    *("preempted", "preempting", "timeout", "oom", "aborted", "abort"),
)
_ENDED = ("", "finished", "complete", "completed", "success", "succeeded", "done", "ended", "ok", "trained")
_NO_VALUE = ("", "none", "null")
_MOST = 3  # rows that a message names


@dataclass(frozen=True)
class Row:
    """One row of a table, and what is to be known of it."""

    number: int
    level: str
    arm: str
    key: tuple[Any, ...]
    """The values that pair it; empty: it is paired with none."""
    run: Any
    step: Any
    value: Any
    status: str

    @property
    def place(self) -> tuple[str, str, tuple[Any, ...]]:
        """What there is one run of, if runs are paired."""
        return self.level, self.arm, self.key


@dataclass
class Results:
    """The outcomes of a table."""

    levels: dict[str, dict[str, dict[int, Outcome]]]
    """Level ('' without any) -> arm -> number of the seed -> outcome, in the order of the seeds."""
    seeds: dict[int, str]
    """Number of a seed -> its name."""
    told: list[str] = field(default_factory=list)
    """What was left out or taken for something, in sentences."""
    paired: bool = True


def collect_results(rows: Rows, columns: Columns, trivial: float | None = None) -> Results:
    """Return the outcome of each run. Raises ConfigError with all problems."""
    return _Reader(rows, columns, trivial).read()


class _Reader:
    def __init__(self, rows: Rows, columns: Columns, trivial: float | None) -> None:
        self.rows, self.columns, self.trivial = rows, columns, trivial
        self.problems: list[Problem] = []
        self.told: list[str] = []
        self.unknown: dict[str, None] = {}
        """Statuses of which it is not known what they mean."""
        self.paired = bool(columns.pair_by)

    def read(self) -> Results:
        ended: dict[str, dict[str, list[tuple[tuple[Any, ...], Outcome]]]] = {}
        left_out: dict[str, list[Row]] = {}
        for steps in self._find_runs(list(self._list_rows())):
            first, outcome = steps[0], self._read_run(steps)
            of_arm = ended.setdefault(first.level, {}).setdefault(first.arm, [])
            if isinstance(outcome, str):
                left_out.setdefault(outcome, []).append(first)
            else:
                of_arm.append((first.key, outcome))
        if self.problems:
            raise ConfigError(self.problems, self.rows.name)
        for why, lost in left_out.items():
            per_arm = Counter(f"{row.arm}{f' at {row.level}' if row.level else ''}" for row in lost)
            told = join_words(f"{count} of {arm}" for arm, count in per_arm.items())
            self.told.append(f"Left out, as no outcome: {told}: {why}.")
        if not any(self.columns.baseline in arms for arms in ended.values()):
            told = f"no run of {self.columns.baseline} is left to compare with. {' '.join(self.told)}"
            raise ConfigError([Problem("baseline", told.strip())], self.rows.name)
        if self.unknown:
            self.told.append(
                f"Runs whose {self.columns.status} is {join_words(map(repr, self.unknown))} are taken to have ended; "
                f"if that is a failure, --status {self.columns.status}=WORD,..."
            )
        runs = [own for arms in ended.values() for own in arms.values()]
        keys = sorted({key for own in runs for key, _ in own}, key=_order) if self.paired else []
        are_whole = all(len(key) == 1 and isinstance(key[0], int) for key in keys)
        numbers = {key: key[0] if are_whole else i for i, key in enumerate(keys, 1)}
        levels = {
            level: {
                arm: dict(sorted((numbers[key], outcome) for key, outcome in own))
                if self.paired
                else {i: outcome for i, (_, outcome) in enumerate(own, 1)}
                for arm, own in arms.items()
            }
            for level, arms in ended.items()
        }
        names = {number: _name_key(self.columns, key) for key, number in numbers.items()}
        return Results(levels, names, self.told, self.paired)

    def _list_rows(self) -> Iterator[Row]:
        """Yield the rows that say which arm, level and seed they are of."""
        columns, c = self.rows.columns, self.columns
        lacking: Counter[str] = Counter()
        for i in range(len(self.rows)):
            places = [(name, columns[name][i]) for name in (c.arm, *c.by, *c.pair_by)]
            if missing := [name for name, value in places if value is None or value != value]:
                lacking.update(missing)
                continue
            level = ", ".join(f"{name}={format_setting(columns[name][i])}" for name in c.by)
            status = "" if c.status is None else str(columns[c.status][i] or "").strip().lower()
            yield Row(
                i + 1,
                level,
                str(columns[c.arm][i]),
                tuple(_plain(columns[name][i]) for name in c.pair_by),
                columns[c.run][i] if c.run else None,
                columns[c.step][i] if c.step else None,
                None if str(columns[c.value][i]).strip().lower() in _NO_VALUE else columns[c.value][i],
                status,
            )
        for name, count in lacking.items():
            self.told.append(f"{count_noun(count, 'row')} without {name} {'was' if count == 1 else 'were'} left out.")

    # ------------------------------------------------------------ which rows are one run

    def _find_runs(self, table: list[Row]) -> list[list[Row]]:
        """Return the rows of each run, in the order of its steps."""
        places = Counter(row.place for row in table)
        several = len(places) < len(table)
        with_steps = self.columns.step is not None and any(row.step is not None for row in table)
        if not (several if self.paired else with_steps and self.columns.run):
            if not self.paired and with_steps and len({row.step for row in table}) > 1:
                self._refuse_steps(
                    table,
                    f"are steps ({self.columns.step}), and no column says which run a row is of. "
                    "Name one, --run COLUMN or --seed COLUMN",
                )
            known = [(row.place, row.run) for row in table if row.run is not None]
            if not self.paired and len({*known}) < len(known):
                self._refuse_steps(
                    table,
                    f"are of {len({*known}):,} runs ({self.columns.run}), and no column says which "
                    "step of its run a row is. Name one, --step COLUMN",
                )
            return [[row] for row in table]
        if not with_steps:
            return self._refuse_twice([row for row in table if places[row.place] > 1])
        runs: dict[Any, list[Row]] = {}
        for row in table:
            runs.setdefault((row.place, row.run), []).append(row)
        ordered = [sorted(own, key=lambda row: _order([row.step])) for own in runs.values()]
        for own in ordered:
            steps = Counter(row.step for row in own)
            if twice := [row for row in own if steps[row.step] > 1 and row.step is not None]:
                return self._refuse_twice([row for row in twice if row.step == twice[0].step])
        places = Counter(own[0].place for own in ordered)
        if self.paired and (twice := [own[-1] for own in ordered if places[own[0].place] > 1]):
            return self._refuse_twice(twice)
        longest = max(map(len, ordered))
        if longest == 1:
            return ordered
        self.told.append(
            f"The rows are steps of {count_noun(len(ordered), 'run')}, up to {longest} each: of each run its last "
            "value is taken."
        )
        return self._leave_out_short(ordered)

    def _refuse_steps(self, table: list[Row], why: str) -> None:
        arms = count_noun(len({row.arm for row in table}), "arm")
        told = f"{len(table):,} rows of {arms} {why}; if each row is a run of its own, --step none"
        self.problems.append(Problem("run", told))

    def _refuse_twice(self, rows: list[Row]) -> list[list[Row]]:
        """Refuse several runs of one seed, with the columns in which they differ; return no runs."""
        first, c = rows[0], self.columns
        same = [row for row in rows if row.place == first.place]
        differ = [
            name
            for name, values in self.rows.columns.items()
            if len({str(values[row.number - 1]) for row in same}) > 1 and name not in (c.value, c.step)
        ]
        numbers = join_first([row.number for row in same], _MOST)
        where = f" at {first.level}" if first.level else ""
        hint = f" They differ in {join_first(differ, 6)}." if differ else " All their other columns are equal."
        self.problems.append(
            Problem(
                "seed",
                f"{first.arm}{where} has several runs of {_name_key(c, first.key)}, in rows {numbers}"
                f"{' and of other seeds' if len(rows) > len(same) else ''}{self.rows.counted}.{hint} If that is "
                "another size or task, judge each: --by COLUMN; if it makes the pairs, --pair-by COLUMN,COLUMN; if "
                "only some are meant, --where COLUMN=VALUE; if they are steps of one run, --run COLUMN that is the "
                "same in them; if they are trials of a search, run the chosen settings on seeds of their own",
            )
        )
        return []

    def _leave_out_short(self, runs: list[list[Row]]) -> list[list[Row]]:
        """Return the runs without those that end before the others of their arm, if most end together: they are still
        running, or were killed. One that ends in NaN, or has a status, has ended."""
        ends: dict[tuple[str, str], list[float]] = {}
        for own in runs:
            if is_number(own[-1].step):
                ends.setdefault(own[0].place[:2], []).append(own[-1].step)

        def is_short(own: list[Row]) -> bool:
            lasts, last = ends.get(own[0].place[:2], []), own[-1]
            if not is_number(last.step) or last.status or _is_lost(last.value):
                return False
            return last.step < 0.99 * max(lasts) and 2 * lasts.count(max(lasts)) >= len(lasts)

        kept, short = list[list[Row]](), list[list[Row]]()
        for own in runs:
            (short if is_short(own) else kept).append(own)
        if short:
            names = [_name_key(self.columns, own[0].key) or f"run {own[0].run}" for own in short]
            told = join_first([f"{o[0].arm} {name} at {o[-1].step}" for o, name in zip(short, names, strict=True)], 5)
            self.told.append(
                f"{count_noun(len(short), 'run')} ended before the others of the arm, still running or killed, and "
                f"{'was' if len(short) == 1 else 'were'} left out: {told}. If it failed, say so in a column: --status."
            )
        last = sorted({own[-1].step for own in kept}, key=lambda step: _order([step]))
        if len(last) > 1:
            self.told.append(
                f"The runs end at different steps, from {last[0]} to {last[-1]}: they may not be of equal length."
            )
        return kept

    # ------------------------------------------------------------ how a run ended

    def _read_run(self, own: list[Row]) -> Outcome | str:
        """Return the outcome of a run, or why it has none."""
        if wrong := [row for row in own if row.value is not None and not is_number(row.value)]:
            self._refuse_text(wrong[0])
        value, status = _find_last([row.value for row in own if row not in wrong]), own[-1].status
        if status in self.columns.failing or status in DIVERGED:
            return Outcome("diverged")
        if status in _OPEN:
            return f"the status is {status}, so it has not ended"
        if status == "pruned":
            return "it was pruned, before its end and because it was bad, so what is left flatters the arm"
        if status in _BROKEN:
            hint = f"if it failed as training diverged, count it: --status {self.columns.status}={status}"
            return f"the status is {status}; {hint}"
        if status in _STUCK:
            return Outcome("stuck", value)
        if status not in _ENDED:
            self.unknown[status] = None
        if value is None:
            return (
                "there is no value. Some programs, such as pandas, write nothing for NaN: if a run diverged, write nan "
                "as its value, or count it by a column: --status COLUMN=WORD"
            )
        return Outcome(classify(value, self.trivial), value) if math.isfinite(value) else Outcome("diverged")

    def _refuse_text(self, row: Row) -> None:
        if not any(known.path == "value" for known in self.problems):
            told = f"the values in {self.columns.value!r} must be numbers, nan or inf, or empty; row {row.number}"
            self.problems.append(Problem("value", f"{told} has {row.value!r}{self.rows.counted}"))


def _find_last(values: list[float | None]) -> float | None:
    """Return the last value of a run. NaN between numbers stands for a step without a measurement, as in frames of
    pandas; NaN from some step to the end is a run that diverged, unless there was NaN before."""
    known = [value for value in values if value is not None]
    finite = [i for i, value in enumerate(known) if not _is_lost(value)]
    if not known:
        return None
    if len(finite) in (0, len(known)):
        return known[-1]
    gaps = any(_is_lost(value) for value in known[: finite[-1]])
    return known[finite[-1]] if gaps else known[-1]


def _is_lost(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _plain(value: Any) -> Any:
    """Return a seed as a whole number, if it is one: frames have 1.0 where some are missing."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _order(key: Sequence[Any]) -> list[tuple[int, float, str]]:
    """Return a key by which numbers come before words."""
    return [(0, float(value), "") if is_number(value) else (1, 0.0, str(value)) for value in key]


def _name_key(columns: Columns, key: tuple[Any, ...]) -> str:
    """Return 'seed 3', or 'seed 3, fold 1'."""
    return ", ".join(f"{name.rpartition('.')[2]} {value}" for name, value in zip(columns.pair_by, key, strict=True))
