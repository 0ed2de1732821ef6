"""The rungs of a scaling ladder: the arms of a sweep file at several sizes, each tuned there.

Each rung is a sweep of its own, so a ladder can be stopped and continued. Sizes are the weights in the matrices of the
layers, without embedding, head and norms: that is what placements act on, and no tokenizer changes it (as in
Kaplan et al. 2020, arXiv 2001.08361). Tokens per parameter count the same parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.models import models
from ablate.sweeps.spec.sweep import Sweep


@dataclass(frozen=True)
class Rung:
    """One size of a ladder."""

    size: str
    parameters: int
    """Weights in the matrices of the layers."""
    items: int
    """Tokens or images of one trial."""
    spec: Sweep

    @classmethod
    def of(cls, size: str, spec: Sweep) -> Rung:
        """Return the rung of `spec`."""
        base = spec.base(next(iter(spec.all_arms)))
        return cls(size, base.model.layer_parameters(), base.items, spec)


def arrange_rungs(rungs: Sequence[Rung], source: str) -> list[Rung]:
    """Return the rungs of a ladder, read from `source`, the smallest first. Raises ConfigError for fewer than two, two
    of one size, other arms, and without fresh seeds."""
    if problems := _validate(rungs):
        raise ConfigError(problems, source)
    return sorted(rungs, key=lambda rung: rung.parameters)


def count_parameters(size: str, known: Sequence[Rung]) -> int:
    """Return the parameters of a size: one of `known`, or a model of their family. Raises ConfigError for another."""
    for rung in known:
        if rung.size == size:
            return rung.parameters
    base = known[0].spec.base(next(iter(known[0].spec.all_arms)))
    if (preset := _find_preset(size, base.model.kind)) is None:
        raise ConfigError([_unknown_size(size, [rung.size for rung in known], known[0])], "the command line")
    return models.parse(preset).layer_parameters()


def _find_preset(size: str, family: str) -> str | None:
    """Return the named model of a size, such as 9m or llama-9m."""
    known = [name for name, fields in models.presets.items() if fields["kind"] == family]
    return next((name for name in (size, f"{family}-{size}") if name in known), None)


def _unknown_size(size: str, own: Sequence[str], smallest: Rung) -> Problem:
    family = smallest.spec.base(next(iter(smallest.spec.all_arms))).model.kind
    named = [n.removeprefix(f"{family}-") for n, fields in models.presets.items() if fields["kind"] == family]
    known = list(dict.fromkeys([*own, *named]))
    return Problem("--extrapolate", f"no such size. Accepted: {', '.join(known)}.{did_you_mean(size, known)}", size)


def _validate(rungs: Sequence[Rung]) -> list[Problem]:
    problems = []
    if len(rungs) < 2:
        problems.append(Problem("sizes", "a comparison over sizes needs two or more", [rung.size for rung in rungs]))
    by_parameters: dict[int, str] = {}
    for rung in rungs:
        if (other := by_parameters.setdefault(rung.parameters, rung.size)) != rung.size:
            problems.append(Problem("sizes", f"{other} and {rung.size} have the same number of parameters"))
        if not rung.spec.confirm.seeds:
            problems.append(
                Problem("confirm.seeds", f"fresh seeds decide the comparison at {rung.size}: set 3 or more")
            )
        if any(cell.point for cell in rung.spec.cells.values()):
            text = "a sweep with a grid has no ladder: a curve over sizes needs one setting of each arm at each size"
            problems.append(Problem("confirm.at", text))
        if any(comparison.levels for comparison in rung.spec.comparisons):
            text = "factorial has no ladder: its trends are those of arms against a baseline; take one-at-a-time"
            problems.append(Problem("design", text))
        if len(rung.spec.all_arms) < 2 or list(rung.spec.all_arms) != list(rungs[0].spec.all_arms):
            arms = ", ".join(rung.spec.all_arms)
            problems.append(Problem("arms", f"every size needs the same two arms or more; {rung.size} has {arms}"))
    return problems
