"""What the arms took: tokens or images, and time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ablate.reports import labels
from ablate.sweeps.records import SweepRecord
from ablate.verdict.outcomes import TrialRecord


@dataclass(frozen=True)
class Cost:
    """What some trials took together."""

    trials: int
    """Those that were begun."""
    items: int
    """Tokens or images that they were trained on, as `Measure.noun` says."""
    seconds: float | None
    """Wall-clock seconds of them all, one after the other; None where none is known."""


@dataclass(frozen=True)
class Measure:
    """In what the length of training is told."""

    noun: str
    """tokens or images; updates where for some trial it is not known how many these are."""
    known: dict[str, set[int]]
    """Arm -> items of one update, as far as its trials say."""

    @classmethod
    def of(cls, record: SweepRecord) -> Measure:
        """The one that all trials of `record` can be told in. Trials that did not finish do not say what an update
        was: it is what it was for the others of their arm, where that is one number."""
        trials = [t for found in (record.trials, record.confirmed) for ts in found.values() for t in ts]
        known: dict[str, set[int]] = {t.arm: set() for t in trials}
        for t in trials:
            known[t.arm] |= {t.items_per_update} - {1}
        clear = all(t.items_per_update > 1 or len(known[t.arm]) == 1 for t in trials if t.step)
        return cls(labels.items(record.spec) if clear and any(known.values()) else "updates", known)

    def per_update(self, trial: TrialRecord) -> int:
        """What one update of `trial` counts."""
        if self.noun == "updates":
            return 1
        return trial.items_per_update if trial.items_per_update > 1 else min(self.known[trial.arm], default=1)


def cost(measure: Measure, trials: Iterable[TrialRecord]) -> Cost:
    """What `trials` took, however they ended."""
    begun = [t for t in trials if t.status != "waiting"]
    seconds = [t.seconds for t in begun if t.seconds is not None]
    return Cost(len(begun), sum(t.step * measure.per_update(t) for t in begun), sum(seconds) if seconds else None)
