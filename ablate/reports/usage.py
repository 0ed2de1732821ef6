"""Tokens or images and time that the trials of an arm used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ablate.reports import labels
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run


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
        return cls(labels.name_items(record.spec) if clear and any(known.values()) else "updates", known)

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
