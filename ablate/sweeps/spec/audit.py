"""The confound audit: differences between the arms of a sweep other than the compared factor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablate.config.errors import Problem, did_you_mean
from ablate.config.formatting import format_settings, join_words
from ablate.experiment.tree import PARAMETRIZATION, PLACEMENT, is_of, is_within
from ablate.sweeps.search.space import Range, format_entry

if TYPE_CHECKING:
    from ablate.sweeps.spec.fields import SweepFields

_ABSENT = "(none)"
_NO_SETTINGS = ("plugins", "trainer.profiler")
"""Settings that change no number of a run by themselves."""


@dataclass(frozen=True)
class Confound:
    """A setting, or its search space, that differs between arms and is not the compared factor."""

    path: str
    values: dict[str, str]
    """Arm -> its value, or its search space for a searched path."""
    declared: bool
    """Whether the sweep file names it under `confounds`."""

    def __str__(self) -> str:
        by_value: dict[str, list[str]] = {}
        for arm, value in self.values.items():
            by_value.setdefault(value, []).append(arm)
        return f"{self.path}: {', '.join(f'{value} ({join_words(arms)})' for value, arms in by_value.items())}"


def find_factor(sweep: SweepFields) -> tuple[str, ...]:
    """Return the compared factor: the one that the file names, the settings of its components, otherwise the first of
    placement, norm layer, initialisation, attention, warm start and parametrisation in which the arms differ. Empty for
    a sweep of one arm. Raises ConfigError if an arm is not a valid experiment."""
    return _pick_factor(sweep, _find_differences(sweep))


def find_confounds(sweep: SweepFields) -> list[Confound]:
    """Return all other differences between arms, declared or not. Raises ConfigError if an arm is not a valid
    experiment."""
    differing = _find_differences(sweep)
    compared = _pick_factor(sweep, differing)
    among = is_within if sweep.compared_paths else lambda path, parts: any(is_of(path, part) for part in parts)
    return [
        Confound(path, values, is_within(path, sweep.confounds))
        for path, values in differing.items()
        if not among(path, compared)
    ]


def describe_coinciding(sweep: SweepFields, points: Mapping[str, Iterable[Mapping[str, Any]]]) -> Iterator[str]:
    """Return a sentence for each two arms whose placements are the same model at some of their `points` (arm ->
    searched values): Mix-LN with an alpha that leaves no layer to Post-LN is Pre-LN. Raises ConfigError."""
    if find_factor(sweep) != (PLACEMENT,):
        return
    sweep = sweep.without_grid()
    models: dict[str, tuple[str, str]] = {}
    for arm, tried in points.items():
        for point in tried:
            placed = format_settings({path: value for path, value in point.items() if is_within(path, [PLACEMENT])}, {})
            here = (arm, placed and f" at {placed}")
            model = sweep.at(arm, point).identify_model()
            other, there = here if model is None else models.setdefault(model, here)
            if other != arm:
                yield f"{arm}{here[1]} is the same model as {other}{there}: all its layers have the same placement."


def _pick_factor(sweep: SweepFields, differing: Iterable[str]) -> tuple[str, ...]:
    if sweep.compared_paths:
        return sweep.compared_paths
    return sweep.kind.pick_factor(differing)


def validate(sweep: SweepFields) -> list[Problem]:
    """Return a problem for arms that are the same, for each difference that is not declared, and for each name under
    `factor` or `confounds` that is not a setting of any arm."""
    sweep = sweep.without_grid()
    problems = list(_check_alike(sweep))
    known = {path for arm in sweep.all_arms for path in (*sweep.base(arm).flat(), *sweep.space(arm))}
    for field, names in (("factor", sweep.factor), ("confounds", sweep.confounds)):
        for name in names:
            if not any(is_within(path, [name]) for path in known):
                parts = known | {path.partition(".")[0] for path in known}
                text = f"no arm has such a setting.{did_you_mean(name, sorted(parts))}"
                problems.append(Problem(field, text, name))
    compared = find_factor(sweep)
    names_of_factor = join_words(compared) or sweep.kind.describe_factors()
    for confound in (c for c in find_confounds(sweep) if not c.declared):
        part = confound.path.partition(".")[0]
        ways = [f"declare it with confounds: [{confound.path}]"] if compared else []
        ways += [f"compare it with factor: {part}"] if part == PLACEMENT or not compared else []
        advice = " or ".join(ways)
        text = (
            f"in addition to the compared factor ({names_of_factor}), the arms differ in {confound}. Set it to the "
            f"same value, {advice}"
        )
        problems.append(Problem("arms", text))
    return problems


def _check_alike(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem for arms that are the same experiment and search the same, so that only chance differs."""
    alike: dict[str, list[str]] = {}
    for arm in sweep.all_arms:
        alike.setdefault(json.dumps(describe_arm(sweep, arm), sort_keys=True), []).append(arm)
    for arms in alike.values():
        if len(arms) > 1:
            text = f"the arms {join_words(arms)} are the same experiment, and search the same"
            if sweep.designed:
                yield Problem("components", f"{text}: the levels that differ change nothing there")
            else:
                yield Problem("arms", f"{text}: what one sets is the default, or is set in the other too. Remove one")


def describe_arm(sweep: SweepFields, arm: str) -> dict[str, str]:
    """Return path -> value, or its search space, of all settings of an arm that change a number of its runs. A
    search among one value is that value."""
    base = sweep.base(arm)
    values = {path: format_entry(value) for path, value in base.flat().items()}
    values |= base.describe_parts()
    values |= {
        path: f"searched, {format_entry(entry)}"
        for path, entry in sweep.space(arm).items()
        if isinstance(entry, Range) or len(entry) > 1
    }
    return {
        path: value
        for path, value in values.items()
        if path not in _NO_SETTINGS and (path == PARAMETRIZATION or not is_within(path, [PARAMETRIZATION]))
    }


def _find_differences(sweep: SweepFields) -> dict[str, dict[str, str]]:
    """Return path -> arm of the file -> value, for paths with different values."""
    sweep, arms = sweep.without_grid(), {}
    for arm in sweep.all_arms:
        taken = dict.fromkeys(one.settings[arm], f"chosen in {one.sweep}") if (one := sweep.taken_over) else {}
        searched = {path: f"searched, {format_entry(entry)}" for path, entry in sweep.space(arm).items()}
        arms[arm] = describe_arm(sweep, arm) | searched | taken
    paths = dict.fromkeys(path for values in arms.values() for path in values)
    table = {path: {arm: values.get(path, _ABSENT) for arm, values in arms.items()} for path in paths}
    return {path: values for path, values in table.items() if len(set(values.values())) > 1}
