"""Tokens or images and time that the runs of an arm used. For arms that start from other models also FLOPs and bytes,
and the savings when they reach the baseline's final result earlier: they are computed by `ablate.estimate.flops`, those
of the source run count as the arm's own, and the operations of the searches are left out, for every arm alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ablate.config.formatting import format_bytes, format_count, format_duration
from ablate.reports.labels import name_items
from ablate.reports.section import NOTHING, Column, Section, Table, words
from ablate.reports.tokens_to_baseline import (
    Pair,
    TokensToBaseline,
    Training,
    bound_if_complete,
    explain_censoring,
    list_trainings,
    pair_trainings,
)
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run
from ablate.sweeps.stages import ALL
from ablate.verdict.intervals import Estimate

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
class Saving:
    """One training of an arm."""

    flops_before: float
    """FLOPs of the models that it starts from."""
    flops: float
    """FLOPs of its own, to its end."""
    state_bytes: float
    """Weights, gradients and moments, by formula."""
    peak_memory_bytes: float | None
    """Measured peak memory of a GPU; None without a GPU."""
    saved: Estimate | None
    """The share of the baseline's FLOPs that are saved until the arm reaches the baseline's final result, including its
    source runs: negative if it needs more. None for the baseline, and if the result is not reached on every seed."""


def compute_savings(record: SweepRecord) -> dict[str, Saving]:
    """Return arm -> its cost; empty if no arm starts from another model or freezes anything, or no cost is known. The
    trainings on fresh seeds are compared or, before the first of them, the best trial of each arm.
    """
    arms = [arm for arm in record.spec.all_arms if arm in record.arms]
    settings = [record.spec.experiment, *(record.spec.all_arms[arm].settings for arm in arms)]
    if not any(path.partition(".")[0] == "warm_start" for tree in settings for path in tree):
        return {}
    by_arm = {}
    for arm in arms:
        trainings = list(list_trainings(record, arm).values())
        known = [t for t in trainings if t.trial.costs.get("flops_per_update")]
        if known and all(t in known or not t.trained for t in trainings):
            by_arm[arm] = _compute_saving(known, pair_trainings(record, arm))
    return by_arm


def _compute_saving(known: Sequence[Training], pairs: Sequence[Pair]) -> Saving:
    """Return the cost of an arm, from its trainings of `known` cost and its `pairs` with the baseline."""
    trials = [training.trial for training in known]
    one = max(trials, key=lambda trial: trial.step)  # one that diverged stops early
    saved = []
    for pair in pairs:
        if pair.updates is not None:
            own = pair.own.trial
            needed = _flops_before(own) + pair.updates * own.costs["flops_per_update"]
            base = pair.baseline.trial
            saved.append(1 - needed / (_flops_before(base) + base.paid_updates * base.costs["flops_per_update"]))
    peaks = [trial.costs["peak_memory_bytes"] for trial in trials if "peak_memory_bytes" in trial.costs]
    return Saving(
        flops_before=_flops_before(one),
        flops=one.step * one.costs["flops_per_update"],
        state_bytes=one.costs["state_bytes"],
        peak_memory_bytes=max(peaks, default=None),
        saved=bound_if_complete(saved, pairs),
    )


def _flops_before(trial: Run) -> float:
    return trial.costs.get("flops_before", 0.0)


# ---------------------------------------------------------------------------------------------------- section


def tabulate_savings(
    savings: Mapping[str, Saving], needed: Mapping[str, TokensToBaseline], baseline: str, metric: str
) -> list[Section]:
    """Return the total compute of arms that start from other models; nothing if there are none. `needed`: arm -> the
    training that it needs to reach the final `metric` of the baseline."""
    if not savings:
        return []
    title = f"Compute and memory, and the compute to reach the final result of {baseline}"
    tokens = {arm: one for arm, one in needed.items() if arm in savings}
    sentences = _explain_savings(savings, tokens, metric, baseline)
    return [Section(title, Table(_saving_columns(savings, tokens, savings.get(baseline))), list(sentences))]


def _saving_columns(
    savings: Mapping[str, Saving], tokens: Mapping[str, TokensToBaseline], baseline: Saving | None
) -> list[Column]:
    rows = list(savings.values())
    needed = [tokens.get(arm) for arm in savings]
    peaks = [s.peak_memory_bytes for s in rows]
    less = [_format_percent(1 - s.state_bytes / baseline.state_bytes) if baseline else None for s in rows]
    return [
        words("arm", savings),
        Column("FLOPs before", [f"{s.flops_before:.3g}" if s.flops_before else None for s in rows]),
        Column("FLOPs", [f"{s.flops:.3g}" for s in rows]),
        Column("states", [format_bytes(int(s.state_bytes)) for s in rows]),
        Column("saved", less),
        *([Column("measured", [format_bytes(int(n)) if n else None for n in peaks])] if any(peaks) else []),
        Column("reached", [f"{t.reached}/{t.seeds}" if t and t.seeds else None for t in needed]),
        Column("after updates", [f"{t.updates.mean:.0f}" if t and t.updates else None for t in needed]),
        Column("FLOPs saved", [s.saved for s in rows], _format_share),
    ]


def _explain_savings(
    savings: Mapping[str, Saving], tokens: Mapping[str, TokensToBaseline], metric: str, baseline: str
) -> Iterable[str]:
    yield (
        "FLOPs: 6 for each trained weight and 2 for each frozen weight, times the tokens, without the embedding "
        "look-up; before: of the models that the arm starts from. States: 16 bytes for a trained parameter and 2 for "
        f"a frozen one. Reached: the number of seeds on which the arm reached the final {metric} of {baseline} on the "
        "same seed, the updates until then, and the share of the baseline's FLOPs that is saved by then, with the "
        "FLOPs before included: mean ± 95 % interval over these seeds, as at one look. The searches of the learning "
        "rate are not counted for any arm."
    )
    yield from explain_censoring(tokens, baseline)
    if any(s.flops_before for s in savings.values()):
        yield "All seeds of an arm start from the same model, so the interval does not include that model's variance."


def _format_percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share else NOTHING


def _format_share(share: Estimate) -> str:
    mean = f"{100 * share.mean:+.1f} %"
    return mean if share.half_width is None else f"{mean} ± {100 * share.half_width:.1f}"
