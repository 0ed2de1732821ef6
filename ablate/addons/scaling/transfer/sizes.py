"""The sizes of a sweep file along one axis, each trained at the same learning rates on the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.addons.scaling.rungs import Rung
from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import join_words
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.sequential import LEAST

FEWEST_RATES = 3
"""A minimum that is not at the edge has a rate on both sides."""


@dataclass(frozen=True)
class Chain:
    """The sizes of a file, the smallest first."""

    name: str
    axis: str
    """What differs between them: width, depth, or parameters where both do."""
    path: str
    """The learning rate that is searched, as a dotted path."""
    rungs: list[Rung]
    places: list[int]
    """Of each size, its width, its number of layers or its parameters."""

    @property
    def arms(self) -> list[str]:
        """The arms of the file."""
        return list(self.rungs[0].spec.own_arms)

    def list_rates(self, k: int) -> list[float]:
        """Return the learning rates of the `k`-th size, ascending."""
        return sorted({float(cell.point[self.path]) for cell in self.rungs[k].spec.cells.values()})  # type: ignore[arg-type]

    def describe_heads(self) -> str:
        """Return a caveat where the attention heads of some arm differ in width between the sizes; '' where they do
        not."""
        widths = [
            {cell.arm: rung.spec.base(name).model.stack().head_dim for name, cell in rung.spec.cells.items()}
            for rung in self.rungs
        ]
        if all(own == widths[0] for own in widths):
            return ""
        own = (
            f"{join_words(map(str, sorted({*by_arm.values()})), 'or')} at {rung.size}"
            for rung, by_arm in zip(self.rungs, widths, strict=True)
        )
        return (
            f"The heads differ in width ({', '.join(own)}), and the scale of attention with it, which is a second "
            "change beside the size: a movement of the best rate may be due to that. Set model.heads so that "
            "model.hidden / model.heads is the same at every size."
        )


def arrange_sizes(named: Mapping[str, Sweep], source: str) -> Chain:
    """Return the sizes of a sweep file (name -> sweep), read from `source`, along one axis. Raises ConfigError with all
    that keeps them from telling whether a learning rate holds."""
    if problems := [*_check_sizes(named), *(p for name, spec in named.items() for p in _check_search(name, spec))]:
        raise ConfigError(problems, source)
    rungs = sorted((Rung.of(name, spec) for name, spec in named.items()), key=lambda rung: rung.parameters)
    axis, places = _find_axis(rungs)
    if len(set(places)) < len(places):
        raise ConfigError([Problem("sizes", f"two have the same {axis}, and a size is told by it")], source)
    path = next(iter(rungs[0].spec.search))
    stem = rungs[0].spec.name.removesuffix(f"-{rungs[0].size}")
    return Chain(f"{stem.removesuffix('-transfer')}-transfer", axis, path, rungs, places)


def _check_sizes(chosen: Mapping[str, Sweep]) -> list[Problem]:
    """Return what keeps the sizes from being compared."""
    arms = {name: list(spec.own_arms) for name, spec in chosen.items()}
    first = next(iter(arms.values()))
    problems = [
        Problem("arms", f"every size needs the same arms; {name} has {join_words(own)}")
        for name, own in arms.items()
        if own != first
    ]
    searched = {name: list(spec.search) for name, spec in chosen.items()}
    if len({*map(tuple, searched.values())}) > 1:
        different = "; ".join(f"{name}: {join_words(paths)}" for name, paths in searched.items())
        problems.append(Problem("search", f"every size searches the same learning rate, and these differ: {different}"))
    return problems


def _check_search(name: str, spec: Sweep) -> list[Problem]:
    """Return what keeps one size from showing a best learning rate."""
    problems = []
    if not spec.cells or spec.sampler.kind != "grid":
        text = (
            f"{name}: every learning rate is trained on every seed, so that the best one has an interval. Set sampler: "
            f"grid and confirm: {{at: grid, seeds: {LEAST}}}"
        )
        return [Problem("confirm.at", text, spec.confirm.at)]
    paths = {path for cell in spec.cells.values() for path in cell.point}
    if len(paths) != 1 or not next(iter(paths)).endswith("lr"):
        text = f"{name}: one learning rate is searched, such as optimizer.lr, the same values for all arms"
        problems.append(Problem("search", text, sorted(paths)))
    elif any(arm.search for arm in spec.own_arms.values()):
        problems.append(Problem("arms", f"{name}: an arm searches other values. Search the same for all arms"))
    elif len({cell.point[path] for cell in spec.cells.values() for path in cell.point}) < FEWEST_RATES:
        text = f"{name}: a minimum has a rate on both sides. Search {FEWEST_RATES} rates or more"
        problems.append(Problem("search", text))
    if spec.confirm.first_seeds < LEAST:
        text = f"{name}: an interval needs {LEAST} seeds or more"
        problems.append(Problem("confirm.seeds", text, spec.confirm.first_seeds))
    return problems


def _find_axis(rungs: Sequence[Rung]) -> tuple[str, list[int]]:
    """Return what differs between the sizes, and its value for each."""
    stacks = [rung.spec.base(next(iter(rung.spec.all_arms))).model.stack() for rung in rungs]
    widths, depths = [stack.hidden for stack in stacks], [stack.depth for stack in stacks]
    if len(set(depths)) == 1:
        return "width", widths
    if len(set(widths)) == 1:
        return "depth", depths
    return "parameters", [rung.parameters for rung in rungs]
