"""What is left to do of a sweep: the runs of each arm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ablate.sweeps.records import SweepRecord, count_remaining
from ablate.sweeps.runs import FINISHED, FRESH, SEARCH, SELECTION, Runs
from ablate.sweeps.spec.sweep import Sweep


@dataclass(frozen=True)
class Left:
    """The remaining runs of an arm."""

    search: int
    selection: int
    seeds: int
    """Fresh seeds up to the first look."""
    more: int
    """Further fresh seeds that it may need."""
    share: float = 1.0
    """Of a whole run, what a trial of the search takes on average."""

    @property
    def sure(self) -> int:
        """Number of certain runs."""
        return self.search + self.selection + self.seeds

    @property
    def whole(self) -> float:
        """What they take, in whole runs."""
        return self.search * self.share + self.selection + self.seeds


def count_left(spec: Sweep, items: Mapping[str, int], record: SweepRecord | None = None) -> dict[str, Left]:
    """Return the remaining runs of each arm. `items`: arm -> tokens or images of a run."""
    left, confirm = {}, spec.confirm
    for arm in spec.all_arms:
        runs = record.runs if record else Runs()
        known = runs.select(arm, SEARCH, status=FINISHED)  # others run again
        seeds, selected = runs.select(arm, FRESH).finished, runs.select(arm, SELECTION).finished
        chosen = record is not None and arm in record.chosen
        left[arm] = Left(
            count_remaining(spec, arm, known, items[arm]),
            0 if chosen else max(0, spec.count_selection_runs(arm) - selected),
            max(0, confirm.first_seeds - seeds),
            max(0, confirm.most_seeds - max(seeds, confirm.first_seeds)),
            spec.find_share(arm),
        )
    return left
