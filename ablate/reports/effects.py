"""The section of the report on the effects of a factorial: main effects, interactions, and failures by level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ablate.config.formatting import join_words
from ablate.reports.plain_values import to_plain
from ablate.reports.section import NOTHING, Column, Section, Table, words
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.verdict_summary import find_difference_bounds
from ablate.verdict.effects import Effect
from ablate.verdict.statements import format_estimate, format_typical


def tabulate_effects(effects: Mapping[str, Effect], spec: Sweep) -> list[Section]:
    """Return the effects of a factorial with their verdicts; nothing for other sweeps, and before the first fresh
    seed."""
    objective, name = spec.objective, spec.objective.title
    if not effects:
        return []
    rows = list(effects.values())
    columns = [
        words("effect", [e.contrast.name for e in rows]),
        words("against", [join_words(f"{one.component}={one.reference}" for one in e.contrast.levels) for e in rows]),
        words("verdict", [e.name_kind() for e in rows]),
        Column(name, [_format_effect(e, spec) for e in rows]),
        words("typical seed", [format_typical(e.versus, 1 if objective.direction == "minimize" else -1) for e in rows]),
        words("failed", [_format_failed(e) for e in rows]),
    ]
    better = "lower" if objective.direction == "minimize" else "higher"
    title = f"Effects of the components on fresh seeds ({name}, {better} is better)"
    return [Section(title, Table(columns), list(_explain(effects)))]


def _format_effect(effect: Effect, spec: Sweep) -> str:
    """Return '-0.12 ± 0.03 (n=5, 1 left out)'; the interval of an interaction is not clipped to possible
    differences."""
    versus = effect.versus
    if versus.difference is None:
        return NOTHING
    bounds = {"bounds": find_difference_bounds(spec)} if effect.contrast.is_main else {}
    left_out = f", {versus.left_out} left out" if versus.left_out else ""
    return f"{format_estimate(versus.difference, sign=True, **bounds)} (n={versus.difference.n}{left_out})"


def _format_failed(effect: Effect) -> str:
    """Return '3/24, 1/24', at the level and at the reference."""
    versus = effect.versus
    return f"{versus.failed}/{effect.runs}, {versus.other_failed}/{effect.runs}" if effect.contrast.is_main else NOTHING


def _explain(effects: Mapping[str, Effect]) -> Iterator[str]:
    """Yield explanations of the figures, and of the rules behind them."""
    any_effect = next(iter(effects.values()))
    sharing = "one comparison" if any_effect.family == 1 else f"{any_effect.family} comparisons together"
    yield (
        "effect of one level: the mean, over all combinations of the other components, of the cell at the level less "
        f"the cell at its reference, ± an interval that errs in 5 % for {sharing} and all looks. A seed gives one "
        "number, and counts if all cells of the effect trained on it."
    )
    yield (
        "typical seed: on how many seeds the effect is an improvement, or the opposite, with the p-value of the exact "
        "sign test, and the tail that shows in the effects of single seeds. With a tail a claim is about most seeds, "
        "not about the mean."
    )
    if any(effect.contrast.where for effect in effects.values()):
        yield "at: the mean is over the cells with that level alone."
    if any(not effect.contrast.is_main for effect in effects.values()):
        yield (
            "effect of two levels: their interaction, the effect of the first where the second is at its level, less "
            "that effect where the second is at its reference; 0 where they add up."
        )
    if any(effect.versus.failed or effect.versus.other_failed for effect in effects.values()):
        yield (
            "failed: runs of all cells at the level, then at the reference. Two levels are compared by the exact sign "
            "test over seeds: on how many of them more cells failed at one than at the other."
        )
    if any_effect.effect is None:
        yield "No confirm.effect is given, so no effect is called equivalent or additive."


def effects_to_plain(effects: Mapping[str, Effect], spec: Sweep) -> dict[str, Any]:
    """Return the design and its effects, for JSON."""
    if spec.designed is None:
        return {}
    told = {name: to_plain(effect.to_dict()) for name, effect in effects.items()}
    return {"design": {"kind": spec.design, "within": spec.within, "cells": spec.designed.cells}, "effects": told}
