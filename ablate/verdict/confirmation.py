"""The arms on fresh seeds, compared in pairs with the baseline: the figures that a sweep may be quoted by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ablate.config.formatting import count_noun, format_number
from ablate.verdict.intervals import (
    Difference,
    Estimate,
    correct_p_values,
    count_seeds_needed,
    estimate,
    estimate_difference,
)


@dataclass(frozen=True)
class FreshSeeds:
    """The outcomes of an arm's best settings on fresh seeds."""

    values: Mapping[int, float]
    """Seed -> objective, of the seeds that completed."""
    diverged: int
    """Seeds on which it diverged."""
    params: dict[str, Any]
    """The settings."""


@dataclass(frozen=True)
class Confirmed:
    """An arm at its best settings, on fresh seeds."""

    estimate: Estimate | None
    """Of the objective, over the seeds that completed; None where none did."""
    diverged: int
    """Seeds on which it diverged."""
    target: int
    """Seeds that there are to be."""
    params: dict[str, Any]
    """The settings."""
    difference: Difference | None
    """Its objective less the baseline's, over the seeds that completed for both; None for the baseline itself."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        d = self.difference
        return {
            "estimate": asdict(self.estimate) if self.estimate else None,
            "diverged": self.diverged,
            "target": self.target,
            "params": self.params,
            "difference": {**asdict(d.estimate), "p": d.p, "adjusted_p": d.adjusted_p} if d else None,
        }


def compare(arms: Mapping[str, FreshSeeds], baseline: str, target: int) -> dict[str, Confirmed]:
    """Return the estimate of each arm and its difference from `baseline`, p-values corrected for the number of arms.
    `target` is the number of seeds that each arm is to have."""
    values = {arm: seeds.values for arm, seeds in arms.items()}
    paired = {arm: estimate_difference(v, values.get(baseline, {})) for arm, v in values.items() if arm != baseline}
    differences = correct_p_values(paired)
    return {
        arm: Confirmed(
            estimate(list(seeds.values.values())) if seeds.values else None,
            seeds.diverged,
            target,
            seeds.params,
            differences.get(arm),
        )
        for arm, seeds in arms.items()
    }


def format_estimate(figure: Estimate, sign: bool = False) -> str:
    """'2.1533 +- 0.0121'; the mean alone where there is no interval."""
    mean = f"{figure.mean:+.4f}" if sign else format_number(figure.mean)
    return mean if figure.half_width is None else f"{mean} +- {figure.half_width:.4f}"


def state_verdict(
    confirmed: Mapping[str, Confirmed],
    baseline: str,
    *,
    unit: str,
    effect: float | None = None,
    maximize: bool = False,
) -> str:
    """One sentence for each arm but `baseline`: what it is better or worse by, or what it would take to know.

    Args:
        confirmed: the arms.
        baseline: the arm that they are compared with.
        unit: the unit of the objective.
        effect: the smallest difference that matters; None: of the size that was seen.
        maximize: whether more of the objective is better.
    """
    compared = {arm: c.difference for arm, c in confirmed.items() if c.difference is not None}
    if not compared:
        return ""
    better = 1 if maximize else -1
    tests = sum(d.p is not None for d in compared.values())
    sentences = []
    for arm, d in compared.items():
        size, n = abs(d.estimate.mean), d.estimate.n
        if d.shown:
            word = "beats" if d.estimate.mean * better > 0 else "is worse than"
            amount = f"{format_number(size)} +- {d.estimate.half_width:.4f} {unit}"
            text = f"{arm} {word} {baseline} by {amount} (n = {n}, p = {d.adjusted_p:.2g})"
        else:
            text = f"{arm} and {baseline}: no difference that {count_noun(n, 'seed')} can show"
            sought = effect or size
            needed = None if d.estimate.sd is None else count_seeds_needed(d.estimate.sd, sought, tests)
            if needed:
                text += f"; n >= {needed} would be needed for one of {sought:.2g} {unit}"
        sentences.append(f"{text}.")
    sentences += [
        f"{arm} diverged on {c.diverged} of {count_noun(c.target, 'seed')}, which its figures leave out."
        for arm, c in confirmed.items()
        if c.diverged
    ]
    text = "On fresh seeds, each at its best settings: " + " ".join(sentences)
    return f"{text} p is corrected for {count_noun(tests, 'comparison')} (Holm)." if tests > 1 else text
