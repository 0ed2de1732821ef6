"""The cap of a whole sweep: what its runs have used of it, and which further runs fit.

Arms stay equal: a search goes on by whole rounds, in which each arm gets one more trial, and leaves room for the runs
that every arm needs after it (candidates on selection seeds, and fresh seeds up to the first look). These are always
made; seeds beyond them, and crossed runs, only if all that are wanted fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ablate.config.formatting import format_count
from ablate.sweeps.records import UNLIMITED, SweepRecord
from ablate.sweeps.spec.parts import Cap
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.outcomes import FINISHED, TrialRecord

GPUS = "gpus"  # of the costs of a trial: the number that trained it; a fraction of one that workers shared


class Runs(NamedTuple):
    """Runs of an arm: of its search, or of settings on further seeds."""

    arm: str
    trials: Sequence[TrialRecord]


class Amount(NamedTuple):
    """What runs use."""

    items: float = 0.0
    """Tokens or images."""
    seconds: float = 0.0
    gpu_seconds: float = 0.0

    def add(self, other: Amount, times: float = 1.0) -> Amount:
        """Return this and `times` the other."""
        return Amount(*(own + times * more for own, more in zip(self, other, strict=True)))


class Ledger:
    """What the runs of a sweep have used of its cap. A run that goes on counts as a whole one; the time of a whole one
    is the mean of those that were completed, of its arm or else of all.

    Args:
        cap: the limits.
        parts: all runs so far.
        items: arm -> tokens or images of a whole run.
        seconds: the estimated time of a whole run, on one GPU, until one is completed; None: unknown.
    """

    def __init__(self, cap: Cap, parts: Iterable[Runs], items: Mapping[str, int], seconds: float | None = None) -> None:
        self.cap = cap
        parts = list(parts)
        ended = [(part.arm, _measure(trial)) for part in parts for trial in part.trials if trial.status in FINISHED]
        whole = [(part.arm, _measure(t)) for part in parts for t in part.trials if t.status == "completed"]
        estimate = seconds or 0.0  # on one GPU, if that is limited
        typical = _average([amount for _, amount in whole]) if whole else Amount(0.0, estimate, estimate)
        self.knows_time = bool(whole) or seconds is not None
        """Whether the time of a run is known."""
        self._whole = {
            arm: (_average(own) if (own := [one for name, one in whole if name == arm]) else typical)._replace(
                items=float(count)
            )
            for arm, count in items.items()
        }
        self.spent = Amount()
        for _, amount in ended:
            self.spent = self.spent.add(amount)
        for part in parts:
            running = sum(trial.status == "running" for trial in part.trials)
            self.spent = self.spent.add(self._whole[part.arm], running)

    def fits(self, runs: Mapping[str, float]) -> bool:
        """Return whether so many further runs of each arm fit."""
        wanted = self.spent
        for arm, count in runs.items():
            wanted = wanted.add(self._whole[arm], count)
        return all(used <= limit for used, limit, *_ in self._list_limits(wanted))

    def limit_rounds(self, started: Mapping[str, int], wanted: Mapping[str, int], after: Mapping[str, int]) -> int:
        """Return the number of trials up to which the search of each arm may go on: those `started` count, none gets
        more than `wanted`, and room is left for the runs `after` the searches. One round is always allowed, and no
        second before the time of a run is known, where that is limited."""
        most = max(1, min(started.values(), default=1))
        if not self.knows_time and (self.cap.hours or self.cap.gpu_hours):
            return most
        for count in range(most + 1, max(wanted.values(), default=0) + 1):
            more = {arm: max(0, min(count, wanted[arm]) - started[arm]) + after[arm] for arm in started}
            if not self.fits(more):
                break
            most = count
        return most

    def describe_left(self, unit: str = "tokens") -> str:
        """Return what is left of each limit, in a few words; `unit` is what a run is trained on."""
        parts = [
            f"{format_(max(0.0, limit - used))} of {format_(limit)} {name if name != 'items' else unit}"
            for used, limit, name, format_ in self._list_limits(self.spent)
        ]
        return f"{', '.join(parts)} left"

    def _list_limits(self, amount: Amount) -> list[tuple[float, float, str, Callable[[float], str]]]:
        """Return what an amount is of each limit that is set, the limit, its unit, and how that is printed."""
        limits = [
            (amount.items, self.cap.tokens, "items", format_count),
            (amount.seconds / 3600, self.cap.hours, "hours", _format_hours),
            (amount.gpu_seconds / 3600, self.cap.gpu_hours, "GPU hours", _format_hours),
        ]
        return [(used, float(limit), unit, format_) for used, limit, unit, format_ in limits if limit is not None]


def open_ledger(record: SweepRecord, seconds: float | None = None) -> Ledger | None:
    """Return what the runs of a sweep have used of its cap, with the estimated `seconds` of one; None if it has
    none."""
    if (cap := record.spec.budget.cap) is None:
        return None
    parts = [Runs(arm, [*trials, *record.list_seed_runs(arm)]) for arm, trials in record.trials.items()]
    return Ledger(cap, parts, {arm: record.trial_items.get(arm, 1) for arm in record.trials}, seconds)


def limit_searches(record: SweepRecord, seconds: float | None = None) -> int | None:
    """Return the number of trials that the cap leaves to the search of each arm, with the estimated `seconds` of a run;
    None without a cap."""
    if (ledger := open_ledger(record, seconds)) is None:
        return None
    plain = replace(record, search_limit=None)
    started = {arm: sum(t.status in (*FINISHED, "running") for t in trials) for arm, trials in record.trials.items()}
    after = {
        arm: max(0, count - sum(t.status in (*FINISHED, "running") for t in record.list_seed_runs(arm)))
        for arm, count in count_runs_after(record.spec).items()
    }
    return ledger.limit_rounds(started, {arm: plain.target(arm) for arm in started}, after)


def plan_searches(
    spec: Sweep, items: Mapping[str, int], record: SweepRecord | None = None, seconds: float | None = None
) -> int:
    """Return the number of trials that the cap of `spec` leaves to the search of each arm, by what the runs of `record`
    have used, if there are any; without a cap `UNLIMITED`. `items`: arm -> tokens or images of a run."""
    known = record or SweepRecord(spec.name, 1, spec, {arm: [] for arm in items})
    limit = limit_searches(replace(known, spec=spec, trial_items=dict(items)), seconds)
    return UNLIMITED if limit is None else limit


def count_runs_after(spec: Sweep) -> dict[str, int]:
    """Return arm -> the runs that it needs after its search: on selection seeds, and on fresh ones up to the first
    look."""
    return {arm: spec.count_selection_runs(arm) + spec.confirm.first_seeds for arm in spec.all_arms}


def _format_hours(hours: float) -> str:
    return f"{hours:.3g}"


def _measure(trial: TrialRecord) -> Amount:
    seconds = trial.seconds or 0.0
    return Amount(float(trial.items), seconds, seconds * float(trial.costs.get(GPUS, 0)))


def _average(amounts: Sequence[Amount]) -> Amount:
    return Amount(*(sum(column) / len(amounts) for column in zip(*amounts, strict=True))) if amounts else Amount()
