"""The training that each arm needs until it first reaches the final objective of the baseline, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.config.formatting import count_noun, format_number, format_uncertain, join_words
from ablate.reports.section import Column, Section, Table, words
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, Run
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import Estimate, bound_mean


@dataclass(frozen=True)
class Training:
    """A training at the chosen settings of an arm that ended."""

    trial: Run
    trained: bool
    """Whether it neither diverged nor got stuck."""


@dataclass(frozen=True)
class Pair:
    """The trainings of an arm and of its baseline on the same seed, on which the baseline trained."""

    own: Training
    baseline: Training
    updates: float | None
    """Updates of the arm until it first reaches the final objective of the baseline; None: it never does, or failed."""

    @property
    def at_first(self) -> bool:
        """Whether that is at its first validation, so that it may have been there earlier."""
        return self.updates is not None and self.updates == min(self.own.trial.curve)

    @property
    def share(self) -> float | None:
        """The share of the baseline's tokens or images that the arm was trained on until then."""
        own, items = self.own.trial, self.baseline.trial.items
        return None if self.updates is None or not items else self.updates * own.items_per_update / items


@dataclass(frozen=True)
class TokensToBaseline:
    """The training that an arm needs until it reaches the final objective of the baseline, over the seeds of both."""

    fresh: bool
    """Whether the seeds are fresh; otherwise it is the best trial of each search, which is optimistic."""
    seeds: int
    """Seeds on which both ended and the baseline trained."""
    left_out: int
    """Seeds on which the baseline failed and has no final result."""
    left_out_failed: int
    """Number of those on which the arm failed too."""
    failed: int
    """Seeds on which the arm diverged or got stuck though the baseline trained, and so did not reach it."""
    reached: int
    """Seeds on which the arm reaches it."""
    at_first: int
    """Number of those on which it does at its first validation, and may have done so earlier."""
    validations: int
    """Validations of a training of the arm at which the objective is known, the fewest of those that trained; between
    two of them it is interpolated."""
    updates: Estimate | None
    """Updates until then, with a 95 % interval over seeds; None if it is not reached on every seed: a mean over the
    others would omit the worst."""
    share: Estimate | None
    """The share of the baseline's tokens or images until then; None as for `updates`."""


def compare_tokens(record: SweepRecord) -> dict[str, TokensToBaseline]:
    """Return arm -> the training that it needs to reach the final objective of its baseline; without the baselines, and
    without the cells of a factorial, which have none. The trainings on fresh seeds are compared or, before the first of
    them, the best trial of each arm."""
    arms = (arm for arm, baseline in record.spec.baselines.items() if arm != baseline and arm in record.arms)
    return {arm: _summarise(record, arm) for arm in arms}


def pair_trainings(record: SweepRecord, arm: str) -> list[Pair]:
    """Return the trainings of `arm` and of its baseline on the seeds of both on which the baseline trained; none of a
    baseline."""
    baseline = record.spec.baselines[arm]
    if arm == baseline:
        return []
    own, others = list_trainings(record, arm), list_trainings(record, baseline)
    less_is_better = record.spec.objective.direction == "minimize"
    return [_pair(own[seed], other, less_is_better) for seed, other in others.items() if seed in own and other.trained]


def list_trainings(record: SweepRecord, arm: str) -> dict[Any, Training]:
    """Return seed -> training of an arm at its chosen settings that ended; before any fresh seed its best trial."""
    runs = record.fresh(arm)
    outcomes = runs.outcomes()
    fresh = {t.seed: t for t in runs if t.status in FINISHED}
    if outcomes:
        return {seed: Training(fresh[seed], outcome.trained) for seed, outcome in outcomes.items()}
    best = record.best(arm) if arm in record.arms else None
    return {"search": Training(best, True)} if best else {}


def find_update_at_goal(curve: Mapping[int, float], goal: float, less_is_better: bool = True) -> float | None:
    """Return the updates after which a curve (updates -> objective) first reaches `goal`, interpolated between two
    validations; None if it never does."""
    sign = 1 if less_is_better else -1
    before: tuple[int, float] | None = None
    for step, value in sorted(curve.items()):
        if sign * value <= sign * goal:
            if before is None or value == goal or not math.isfinite(before[1]):
                return float(step)
            return before[0] + (step - before[0]) * (before[1] - goal) / (before[1] - value)
        before = (step, value)
    return None


def bound_if_complete(values: Sequence[float], pairs: Sequence[Pair]) -> Estimate | None:
    """Return the mean of `values`, one for each of the `pairs` that reach the goal, with its 95 % interval; None unless
    all of them do."""
    return bound_mean(values, ALPHA) if pairs and len(values) == len(pairs) else None


def _pair(own: Training, baseline: Training, less_is_better: bool) -> Pair:
    goal = baseline.trial.value
    updates = None
    if own.trained and goal is not None:
        updates = find_update_at_goal(own.trial.curve, goal, less_is_better)
    return Pair(own, baseline, updates)


def _summarise(record: SweepRecord, arm: str) -> TokensToBaseline:
    pairs, baseline = pair_trainings(record, arm), list_trainings(record, record.spec.baselines[arm])
    trainings = list_trainings(record, arm)
    left_out = [own for seed, own in trainings.items() if seed in baseline and not baseline[seed].trained]
    updates = [pair.updates for pair in pairs if pair.updates is not None]
    shares = [pair.share for pair in pairs if pair.share is not None]
    return TokensToBaseline(
        fresh="search" not in trainings,
        seeds=len(pairs),
        left_out=len(left_out),
        left_out_failed=sum(not own.trained for own in left_out),
        failed=sum(not pair.own.trained for pair in pairs),
        reached=len(updates),
        at_first=sum(pair.at_first for pair in pairs),
        validations=min((len(pair.own.trial.curve) for pair in pairs if pair.own.trained), default=0),
        updates=bound_if_complete(updates, pairs),
        share=bound_if_complete(shares, pairs),
    )


# ---------------------------------------------------------------------------------------------------- section


def tabulate_tokens(known: Mapping[str, TokensToBaseline], spec: Sweep, unit: str) -> list[Section]:
    """Return how soon each arm reaches the final objective of the baseline on fresh seeds; nothing before there are
    seeds of both. `unit`: tokens or images."""
    tokens = {arm: one for arm, one in known.items() if one.fresh and (one.seeds or one.left_out)}
    if not tokens:
        return []
    baseline, metric = spec.compared_with, spec.objective.title
    title = f"{unit.capitalize()} to reach the final {metric} of {baseline}"
    if not any(one.seeds for one in tokens.values()):
        text = f"{baseline} trained on none of the seeds, so there is no final {metric} to reach."
        return [Section(title, sentences=[text, *explain_censoring(tokens, baseline)])]
    if max(one.validations for one in tokens.values()) == 1:
        text = (
            f"A training has one validation, so it is not known how soon it reaches the final {metric} of {baseline}."
        )
        return [Section(title, sentences=[text])]
    rows = list(tokens.values())
    columns = [
        words("arm", tokens),
        Column("n", [one.seeds for one in rows]),
        Column("failed", [f"{one.failed + one.left_out_failed}/{one.seeds + one.left_out}" for one in rows]),
        Column("reached", [f"{one.reached}/{one.seeds}" if one.seeds else None for one in rows]),
        Column("at first validation", [one.at_first for one in rows]),
        Column(f"share of {unit}", [one.share for one in rows], _format_share),
        Column("updates", [format_number(one.updates.mean, 0) if one.updates else None for one in rows]),
    ]
    return [Section(title, Table(columns), list(_explain(tokens, metric, baseline, unit)))]


def explain_censoring(tokens: Mapping[str, TokensToBaseline], baseline: str) -> Iterator[str]:
    """Yield sentences on what is unknown about the training in `tokens`, and for which arms."""
    if missing := [
        f"{arm} on {one.seeds - one.reached} of {one.seeds}" + (f" ({one.failed} of them failed)" if one.failed else "")
        for arm, one in tokens.items()
        if one.reached < one.seeds
    ]:
        yield f"Not reached: {join_words(missing)}. No mean is given there: it would omit the worst seeds."
    if left_out := max((one.left_out for one in tokens.values()), default=0):
        text = f"Left out: {count_noun(left_out, 'seed')} on which {baseline} failed and has no final result"
        on_these = [f"{arm} on {one.left_out_failed} of {one.left_out}" for arm, one in tokens.items() if one.left_out]
        yield f"{text}. Of these, failed too: {join_words(on_these)}."
    if early := [f"{arm} {one.at_first} of {one.seeds}" for arm, one in tokens.items() if one.at_first]:
        yield (
            f"Reached at the first validation: {join_words(early)}. They may have reached it earlier, and their "
            "interval, which is based on validations only, is too narrow."
        )


def _explain(tokens: Mapping[str, TokensToBaseline], metric: str, baseline: str, unit: str) -> Iterator[str]:
    counts = sorted({one.validations for one in tokens.values() if one.validations})
    count = " to ".join(dict.fromkeys(str(end) for end in (*counts[:1], *counts[-1:])))
    between = f", of which a training has {count}" if counts else ""
    yield (
        f"The {unit} after which the {metric} of the arm first reaches the final one of {baseline} on the same seed, "
        f"as a share of all {unit} of {baseline}: mean ± 95 % interval over the n seeds, as at one look. It is "
        f"interpolated between validations{between}. The interval describes these seeds: it is not one of the "
        "comparisons that share the error of 5 %, and no verdict follows from it."
    )
    yield (
        "The first time counts, which may be by chance where the curve fluctuates. The learning rate of the arm has "
        "not finished its schedule there: a training planned to be that short may need more or less."
    )
    yield from explain_censoring(tokens, baseline)
    if equal := [arm for arm, one in tokens.items() if one.share and one.share.n > 1 and one.share.interval is None]:
        yield f"{join_words(equal)}: equal on every seed, which gives no interval."


def _format_share(share: Estimate) -> str:
    half_width = None if share.half_width is None else 100 * share.half_width
    return f"{format_uncertain(100 * share.mean, half_width, bounds=(0.0, math.inf))} %"
