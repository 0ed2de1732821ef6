"""Differences between the arms other than the compared factor: in settings, and in the environment of their runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.errors import ConfigError
from ablate.config.formatting import count_noun, join_words
from ablate.reports.section import Section, Table
from ablate.sweeps.records import SETTING, SweepRecord
from ablate.sweeps.runs import FINISHED, Run
from ablate.sweeps.spec import audit
from ablate.tracking.provenance import COMPARED

DIRTY = "ablate.dirty"
UNKNOWN = "not recorded"
_COMPUTED = {
    "ablate.corpus": "data",
    "ablate.hardware": "hardware",
    "ablate.precision": "precision",
    "ablate.compile": "compile",
}
"""Facts by which runs differ or round differently -> their name."""


@dataclass(frozen=True)
class Surrounding:
    """A fact that is not the same for all runs of a sweep."""

    key: str
    """One of provenance.COMPARED."""
    runs: dict[str, dict[str, int]]
    """Value -> arm -> number of finished runs, in the search and after it."""


@dataclass(frozen=True)
class Confounds:
    """Differences between the arms other than the compared factor."""

    factor: list[str]
    """The compared factor: paths, or their first parts."""
    found: list[audit.Confound] | None
    """None if the arms' experiments cannot be built."""
    problem: str = ""
    """The reason that they cannot be built."""


def find_confounds(record: SweepRecord) -> Confounds | None:
    """Return the confounds of a sweep; None if there is only one arm."""
    if len(record.spec.own_arms) < 2:
        return None
    try:
        return Confounds(list(audit.find_factor(record.spec)), audit.find_confounds(record.spec))
    except ConfigError as error:
        return Confounds(list(record.spec.factor), None, str(error.problems[0]))


def find_surroundings(record: SweepRecord) -> list[Surrounding]:
    """Return every fact in which finished runs differ, in the search and after it; runs without facts are omitted."""
    different = []
    runs = _list_runs(record)
    for key in COMPARED:
        by_value: dict[str, dict[str, int]] = {}
        for t in runs:
            arms = by_value.setdefault(t.facts.get(key, UNKNOWN), {})
            arms[t.arm] = arms.get(t.arm, 0) + 1
        if len(by_value) > 1:
            different.append(Surrounding(key, by_value))
    return different


def find_common_facts(record: SweepRecord) -> dict[str, str]:
    """Return the facts that are the same for all runs."""
    runs = _list_runs(record)
    values = {key: {t.facts.get(key) for t in runs} for key in COMPARED}
    return {key: value for key, known in values.items() if len(known) == 1 and (value := next(iter(known)))}


def describe_surroundings(record: SweepRecord) -> Iterator[str]:
    """Yield sentences on the environments of all runs."""
    runs = _list_runs(record)
    yield from describe_dirty(record)
    if runs and not record.spec.is_own and not find_surroundings(record):
        words = {"ablate.processor": "processor", "mlflow.source.git.commit": "commit of the folder"}
        known = [word for key, word in words.items() if all(key in run.facts for run in runs)]
        known += [name for name in record.inputs if not name.startswith(SETTING)]
        yield (
            f"All {count_noun(len(runs), 'run')} used the same {join_words(known)}. Packages, other files and "
            "accelerators are not recorded for runs of this kind."
        )
    elif runs and not find_surroundings(record):
        data = "data, " if all("ablate.corpus" in run.facts for run in runs) else ""  # else it differs at each reading
        yield (
            f"All {count_noun(len(runs), 'run')} used the same {data}hardware, precision, code and package versions."
        )


def describe_dirty(record: SweepRecord) -> Iterator[str]:
    """Yield a sentence if runs used code that their commit does not identify."""
    runs = _list_runs(record)
    if dirty := [record.spec.find_arm(t.arm) for t in runs if t.facts.get(DIRTY) == "true"]:
        by_arm = join_words(f"{arm} {dirty.count(arm)}" for arm in dict.fromkeys(dirty))
        yield (
            f"{len(dirty)} of {count_noun(len(runs), 'run')} used code with uncommitted changes ({by_arm}). Their "
            "commit alone does not identify the code."
        )


def describe_sizes(records: Mapping[str, SweepRecord]) -> Iterator[str]:
    """Yield a sentence if the runs of sizes (size -> record) differ in what they were computed on, or how."""
    different = []
    known = {size: runs for size, record in records.items() if (runs := _list_runs(record))}
    for key, word in _COMPUTED.items():
        arms: dict[str, dict[str, set[str]]] = {}  # value -> size -> arms
        for size, runs in known.items():
            for t in runs:
                by_size = arms.setdefault(t.facts.get(key, UNKNOWN), {})
                by_size.setdefault(size, set()).add(records[size].spec.find_arm(t.arm))
        if any(len(by_size) < len(known) for by_size in arms.values()):
            different.append(f"{word} {join_words(_place(value, arms) for value in arms)}")
    if different:
        yield (
            f"Between sizes more differs than the size: {'; '.join(different)}. What the sizes show together may come "
            "of that too."
        )


def _place(value: str, arms: Mapping[str, Mapping[str, set[str]]]) -> str:
    """Return the value with the sizes that have it, or their arms where a size has others too."""
    places = []
    for size, own in arms[value].items():
        others = set().union(*(by_size.get(size, ()) for other, by_size in arms.items() if other != value))
        names = ", ".join(sorted(own - others)) or "some runs"
        places.append(f"{names} of {size}" if others else size)
    return f"{value[:12] if len(value) == 64 else value} ({join_words(places)})"  # of a SHA-256 enough to tell it


def _list_runs(record: SweepRecord) -> list[Run]:
    return [t for t in record.runs if t.status in FINISHED and t.facts]


# ---------------------------------------------------------------------------------------------------- section


def tabulate_confounds(record: SweepRecord) -> list[Section]:
    """Return the differences between the arms and their runs other than the compared factor."""
    sections, confounds, surroundings = list[Section](), find_confounds(record), find_surroundings(record)
    if confounds is not None:
        factor = join_words(confounds.factor) or "compared factor"
        if confounds.found:
            rows = [
                (c.path, value, join_words(a for a, v in c.values.items() if v == value), "yes" if c.declared else "no")
                for c in confounds.found
                for value in dict.fromkeys(c.values.values())
            ]
            title = f"The arms differ in {factor}, and also in" if confounds.factor else "The arms differ only in"
            sections.append(Section(title, Table.of_rows(("setting", "value", "arms", "declared"), rows)))
        else:
            sentence = f"The arms differ only in {factor}."
            if confounds.problem:
                sentence = f"Whether the arms differ only in {factor} is not known: {confounds.problem}"
            sections.append(Section("Differences between the arms", sentences=[sentence]))
    notes = list(describe_surroundings(record))
    with contextlib.suppress(ConfigError):  # of a plugin that is gone
        if told := record.spec.base(next(iter(record.spec.all_arms))).describe_runs():
            sections.append(Section("How the runs were made", sentences=told))
    if surroundings:
        lines = [
            (s.key, value, join_words(f"{arm} {runs}" for arm, runs in arms.items()))
            for s in surroundings
            for value, arms in s.runs.items()
        ]
        sections.append(Section("The runs also differ in", Table.of_rows(("fact", "value", "runs"), lines), notes))
    elif notes:
        sections.append(Section("Data, hardware and software of the runs", sentences=notes))
    return sections


def confounds_to_plain(record: SweepRecord) -> dict[str, Any]:
    """Return the differences between the arms and between their runs, for JSON."""
    confounds = find_confounds(record)
    return {
        "confounds": asdict(confounds) if confounds else None,
        "surroundings": {s.key: s.runs for s in find_surroundings(record)},
        "common": find_common_facts(record),
    }
