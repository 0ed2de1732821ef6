"""Checks of `components` and `design`: that they make arms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ablate.config.errors import Problem
from ablate.config.formatting import join_words
from ablate.sweeps.spec.design import CROSSED, check_components
from ablate.sweeps.spec.fields import MOST_LETTERS, SweepFields


def validate_design(sweep: SweepFields) -> list[Problem]:
    """Return the problems of the components of a sweep, and of fields that need them."""
    if sweep.components is None:
        given = {"design": sweep.design, "within": sweep.within}
        text = "needs components, whose levels it combines"
        return [Problem(field, text, value) for field, value in given.items() if value is not None]
    return [
        *check_components(sweep.components, sweep.design, sweep.within),
        *_check_beside(sweep),
        *_check_names(sweep),
    ]


def _check_beside(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the fields that cannot be combined with components."""
    if sweep.arms:
        yield Problem("arms", "cannot be combined with components, which make the arms: remove one of the two")
    if sweep.baseline is not None:
        text = (
            "cannot be combined with components: the baseline is the arm of all first levels (leave-one-out: of "
            "all last ones)"
        )
        yield Problem("baseline", text, sweep.baseline)
    if sweep.factor:
        yield Problem(
            "factor",
            "cannot be combined with components: the settings of their levels are the factor",
            list(sweep.factor),
        )
    if sweep.design not in CROSSED and sweep.within is not None:
        yield Problem("within", "needs design: factorial", sweep.within)
    if sweep.design in CROSSED and sweep.at_grid and sweep.search:
        text = (
            "grid cannot be combined with a search of a factorial design. Make the searched setting a component, with "
            "its values as levels"
        )
        yield Problem("confirm.at", text, "grid")


def _check_names(sweep: SweepFields) -> Iterator[Problem]:
    """Yield a problem where the longest name of an arm does not fit."""
    longest = max(sweep.designed.arms, key=len) if sweep.designed else ""
    if len(longest) > MOST_LETTERS:
        text = f"the name of an arm has at most {MOST_LETTERS} letters, and {longest[:60]}... has {len(longest)}"
        yield Problem("components", f"{text}: give levels: {{NAME: value}} with shorter names")


def merge_alike(problems: Iterable[Problem], arms: Iterable[str]) -> list[Problem]:
    """Return `problems` with those that several arms have told once, with the names of these arms."""
    every = list(arms)
    merged: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        arm = max((a for a in every if problem.path.startswith(f"arms.{a}.")), key=len, default="")
        path = problem.path.removeprefix(f"arms.{arm}.") if arm else problem.path
        key = path, problem.message, repr(problem.given)
        first.setdefault(key, problem)
        merged.setdefault(key, []).append(arm)
    return [
        first[key]
        if len(own) == 1 or not all(own)
        else Problem(key[0], f"{key[1]} (in {_name_arms(own, every)})", first[key].given)
        for key, own in merged.items()
    ]


def _name_arms(own: list[str], every: list[str]) -> str:
    return "every arm" if len(own) == len(every) else f"the arms {join_words(own)}"
