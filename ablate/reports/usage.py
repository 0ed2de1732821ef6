"""Tokens or images and time that the runs of an arm used. For arms that start from other models also FLOPs and bytes:
they are computed by `ablate.estimate.flops`, and the operations of the searches are left out, for every arm alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ablate.config.formatting import format_bytes, format_count, format_duration
from ablate.reports.labels import name_items
from ablate.reports.section import NOTHING, Column, Section, Table, words
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, Run
from ablate.sweeps.stages import ALL

KINDS = {stage.name: stage.purpose for stage in ALL[1:]}
"""Kind of runs after the search -> its purpose."""


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
    """tokens or images; updates if the tokens or images of some trial are unknown, steps if they are of a program that
    something else than Ablate's trainer runs."""
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
        one = "updates" if record.spec.is_own else "steps"
        return cls(name_items(record.spec) if clear and any(known.values()) else one, known)

    def per_update(self, trial: Run) -> int:
        """Return the items of one update of `trial`."""
        if self.noun in ("updates", "steps"):
            return 1
        return trial.items_per_update if trial.items_per_update > 1 else min(self.known[trial.arm], default=1)


def sum_usage(unit: UsageUnit, trials: Iterable[Run]) -> Usage:
    """Return the usage of `trials`, however they ended."""
    begun = [t for t in trials if t.status != "waiting"]
    seconds = [t.seconds for t in begun if t.seconds is not None]
    return Usage(len(begun), sum(t.paid_updates * unit.per_update(t) for t in begun), sum(seconds) if seconds else None)


def tabulate_usage(noun: str, search: Mapping[str, Usage], after: Mapping[str, Mapping[str, Usage]]) -> list[Section]:
    """Return the compute of each arm. `search`: arm -> what its search used, empty without a search; `after`: each of
    `KINDS` -> arm -> what its runs used."""
    begun = {kind: usage for kind, usage in after.items() if any(used.trials for used in usage.values())}
    arms = next(iter(after.values()))
    columns = [
        words("arm", arms),
        *(Column(kind, list(usage.values()), _format) for kind, usage in {"search": search, **begun}.items() if usage),
    ]
    sentences = [f"{'; '.join(f'{kind}: {KINDS[kind]}' for kind in begun)}."] if begun else []
    title = f"Compute per arm ({' / '.join(['search', *begun])}): runs, {noun} and time"
    return [Section(title, Table(columns), sentences)]


def _format(usage: Usage) -> str:
    """Return '12, 1.2 M, 3 min'."""
    return f"{usage.trials}, {format_count(usage.items)}, {format_duration(usage.seconds)}"


@dataclass(frozen=True)
class Cost:
    """One training of an arm."""

    flops_before: float
    """FLOPs of the models that it starts from."""
    flops: float
    """FLOPs of its own, to its end."""
    state_bytes: float
    """Weights, gradients and moments, by formula."""
    peak_memory_bytes: float | None
    """Measured peak memory of a GPU; None without a GPU."""


def compute_costs(record: SweepRecord) -> dict[str, Cost]:
    """Return arm -> the cost of a training on fresh seeds or, before the first of them, of its best trial; empty if no
    arm starts from another model or freezes anything, or no cost is known."""
    arms = [arm for arm in record.spec.all_arms if arm in record.arms]
    settings = [record.spec.experiment, *(record.spec.all_arms[arm].settings for arm in arms)]
    if not any(path.partition(".")[0] == "warm_start" for tree in settings for path in tree):
        return {}
    costs = {}
    for arm in arms:
        best = record.best(arm)
        runs = record.fresh(arm).select(status=FINISHED) or ([best] if best else [])
        if known := [run for run in runs if run.costs.get("flops_per_update")]:
            one = max(known, key=lambda run: run.step)  # one that diverged stops early
            peaks = [run.costs["peak_memory_bytes"] for run in known if "peak_memory_bytes" in run.costs]
            own = one.step * one.costs["flops_per_update"]
            before = one.costs.get("flops_before", 0.0)
            costs[arm] = Cost(before, own, one.costs["state_bytes"], max(peaks, default=None))
    return costs


def tabulate_costs(costs: Mapping[str, Cost], baseline: str) -> list[Section]:
    """Return FLOPs and memory of arms that start from other models; nothing if there are none."""
    if not costs:
        return []
    rows, base = list(costs.values()), costs.get(baseline)
    peaks = [cost.peak_memory_bytes for cost in rows]
    columns = [
        words("arm", costs),
        Column("FLOPs before", [f"{cost.flops_before:.3g}" if cost.flops_before else None for cost in rows]),
        Column("FLOPs", [f"{cost.flops:.3g}" for cost in rows]),
        Column("states", [format_bytes(int(cost.state_bytes)) for cost in rows]),
        Column("saved", [_format_percent(1 - cost.state_bytes / base.state_bytes) if base else None for cost in rows]),
        *([Column("measured", [format_bytes(int(n)) if n else None for n in peaks])] if any(peaks) else []),
    ]
    sentences = [
        "FLOPs: 6 for each trained weight and 2 for each frozen weight, times the tokens, without the embedding "
        "look-up; before: of the models that the arm starts from. States: 16 bytes for a trained parameter and 2 for a "
        "frozen one. The searches of the learning rate are not counted for any arm."
    ]
    if any(cost.flops_before for cost in rows):
        sentences.append(
            "All seeds of an arm start from the same model, so no interval includes that model's variance."
        )
    return [Section("FLOPs and memory of one training", Table(columns), sentences)]


def _format_percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share else NOTHING
