"""Tokens or images and time that the runs of an arm used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ablate.config.formatting import format_count, format_duration
from ablate.reports.labels import name_items
from ablate.reports.section import Column, Merge, Section, Table, words
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run
from ablate.sweeps.stages import ALL

KINDS = {stage.name: stage.purpose for stage in ALL[1:]}
"""Of runs after the search."""


@dataclass(frozen=True)
class Usage:
    """The sum over some trials."""

    trials: int
    """Started trials."""
    items: int
    """Tokens or images that they were trained on, as `UsageUnit.noun` says."""
    seconds: float | None
    """Total wall-clock seconds of all trials; None if unknown."""


@dataclass(frozen=True)
class UsageUnit:
    """The unit in which the length of training is given."""

    noun: str
    """tokens or images; updates if the tokens or images of some trial are unknown."""
    known: dict[str, set[int]]
    """Arm -> items of one update, as far as its trials record them."""

    @classmethod
    def of(cls, record: SweepRecord) -> UsageUnit:
        """Return the unit that fits all trials of `record`. Trials that did not finish do not record the items of an
        update: the number of the arm's other trials is used, if it is unique."""
        trials = record.runs
        known: dict[str, set[int]] = {t.arm: set() for t in trials}
        for t in trials:
            known[t.arm] |= {t.items_per_update} - {1}
        clear = all(t.items_per_update > 1 or len(known[t.arm]) == 1 for t in trials if t.step)
        return cls(name_items(record.spec) if clear and any(known.values()) else "updates", known)

    def per_update(self, trial: Run) -> int:
        """Return the items of one update of `trial`."""
        if self.noun == "updates":
            return 1
        return trial.items_per_update if trial.items_per_update > 1 else min(self.known[trial.arm], default=1)


def sum_usage(unit: UsageUnit, trials: Iterable[Run]) -> Usage:
    """Return what `trials` used, however they ended."""
    begun = [t for t in trials if t.status != "waiting"]
    seconds = [t.seconds for t in begun if t.seconds is not None]
    return Usage(len(begun), sum(t.paid_updates * unit.per_update(t) for t in begun), sum(seconds) if seconds else None)


def tabulate_usage(noun: str, search: Mapping[str, Usage], after: Mapping[str, Mapping[str, Usage]]) -> list[Section]:
    """Return the compute of each arm. `search`: arm -> what its search used, empty without a search; `after`: each of
    `KINDS` -> arm -> what its runs used."""
    begun = {kind: usage for kind, usage in after.items() if any(used.trials for used in usage.values())}
    arms = next(iter(after.values()))
    columns = [words("arm", arms), *(_list_columns("", noun, search.values()) if search else [])]
    for kind, usage in begun.items():
        merge = Merge(1, lambda names: names[0].rpartition(" ")[0], lambda names, cells: ", ".join(cells))
        columns += _list_columns(f"{kind} ", noun, usage.values(), merge)
    sentences = [f"{'; '.join(f'{kind}: {KINDS[kind]}' for kind in begun)}."] if begun else []
    title = f"Compute per arm ({' / '.join(['search', *begun])}): runs, {noun} and time"
    return [Section(title, Table(columns), sentences)]


def _list_columns(prefix: str, noun: str, usage: Iterable[Usage], merge: Merge | None = None) -> list[Column]:
    rows = list(usage)
    return [
        Column(f"{prefix}runs", [row.trials for row in rows], merge=merge),
        Column(f"{prefix}{noun}", [row.items for row in rows], format_count, merge=merge),
        Column(f"{prefix}time", [format_duration(row.seconds) for row in rows], merge=merge),
    ]
