"""Checks of `confirm: {at: grid}`: that there is a grid, and that no setting requires a search."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import format_settings, join_words
from ablate.sweeps.spec.fields import SweepFields
from ablate.sweeps.spec.grid import list_grid
from ablate.sweeps.spec.references import find_own_donor

MOST_LETTERS = 400
"""Of the name of an arm at a point, which is a part of the names of studies: those are stored in 512."""


def validate_grid(sweep: SweepFields) -> list[Problem]:
    """Return the problems of a sweep that tests every point of its grid."""
    return [*_check_grid(sweep), *_check_what_is_left_out(sweep)]


def _check_grid(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the reasons that there is no grid, or none on which the arms can be compared."""
    if sweep.sampler.kind != "grid":
        yield Problem("confirm.at", "grid needs sampler: grid, whose points are tested", sweep.sampler.kind)
        return
    plain = sweep.without_grid()
    if not any(plain.space(arm) for arm in plain.own_arms):
        return  # every arm is tested as it stands
    if any(sweep.sampler.validate(plain.space(arm)) for arm in plain.own_arms):
        return  # which is told of on its own
    baseline = sweep.compared_with
    if own := list(sweep.own_arms[baseline].search):
        text = (
            f"arms are compared with {baseline} at the same point, so the baseline has no search of its own: search "
            f"{join_words(own)} for all arms, or choose another baseline"
        )
        yield Problem(f"arms.{baseline}.search", text)
        return
    cells = list_grid(sweep.own_arms, sweep.search, baseline)
    for cell in cells.values():
        if not cell.baseline:
            text = f"{baseline} has no point {format_settings(dict(cell.shared), {})}, with which it could be compared"
            yield Problem(f"arms.{cell.arm}.search", text)
            return
    longest = max(cells, key=len)
    if len(longest) > MOST_LETTERS:
        text = f"the name of an arm at a point has at most {MOST_LETTERS} letters, and {longest[:60]}... has more"
        yield Problem("search", text)


def _check_what_is_left_out(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the settings that have no meaning without a search or a choice."""
    confirm, usual = sweep.confirm, type(sweep.confirm)()
    if not confirm.most_seeds:
        yield Problem("confirm.seeds", "is required with at: grid, whose points are only trained on fresh seeds")
    for field in ("candidates", "selection_seeds"):
        if getattr(confirm, field) != getattr(usual, field):
            text = "cannot be combined with at: grid, where every point is tested and none is chosen"
            yield Problem(f"confirm.{field}", text, getattr(confirm, field))
    if sweep.budget != type(sweep.budget)():
        text = (
            "cannot be combined with confirm.at: grid, where every arm is trained at every point on confirm.seeds seeds"
        )
        yield Problem("budget", text)
    if sweep.pruner.kind != "none":
        yield Problem(
            "pruner", "cannot be combined with confirm.at: grid, where every run is an outcome", sweep.pruner.kind
        )
    plain = sweep.without_grid()
    if sweep.published and any(plain.space(arm) for arm in plain.own_arms):
        text = "cannot be combined with confirm.at: grid and a search: published figures are for the settings of an arm"
        yield Problem("published", text)
    for arm in plain.own_arms:
        try:
            donor = find_own_donor(plain, arm)
        except ConfigError:  # an experiment that is told of on its own
            continue
        if donor is not None:
            text = f"{donor} is tested at every point of its grid, so it has no best trial"
            yield Problem(f"arms.{arm}.warm_start.from", text)
