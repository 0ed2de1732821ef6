"""The sizes of a sweep file, to be compared: as a ladder, the arms at several sizes, each tuned there; or
along one axis, each trained at the same learning rates on the same seeds.

Each size is a sweep of its own, so a study of sizes can be stopped and continued. A size is measured by the weights in
the matrices of the layers, without embedding, head and norms: that is what placements act on, and no tokenizer changes
it (as in Kaplan et al. 2020, arXiv 2001.08361). Tokens per parameter count the same parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.formatting import join_words
from ablate.models import models
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.sequential import LEAST


@dataclass(frozen=True)
class Size:
    """One size of a sweep file."""

    name: str
    parameters: int
    """Weights in the matrices of the layers."""
    items: int
    """Tokens or images of one trial."""
    spec: Sweep

    @classmethod
    def of(cls, name: str, spec: Sweep) -> Size:
        """Return the size `name`, whose sweep is `spec`."""
        base = spec.own_base(next(iter(spec.all_arms)))
        return cls(name, base.model.layer_parameters(), base.items, spec)


def arrange_ladder(sizes: Sequence[Size], source: str) -> list[Size]:
    """Return the sizes of a ladder, read from `source`, the smallest first. Raises ConfigError for fewer than two, two
    of one size, other arms, and without fresh seeds."""
    if problems := _validate(sizes):
        raise ConfigError(problems, source)
    return sorted(sizes, key=lambda size: size.parameters)


def count_parameters(name: str, known: Sequence[Size]) -> int:
    """Return the parameters of a size: one of `known`, or a model of their family. Raises ConfigError for another."""
    for size in known:
        if size.name == name:
            return size.parameters
    base = known[0].spec.own_base(next(iter(known[0].spec.all_arms)))
    if (preset := _find_preset(name, base.model.kind)) is None:
        raise ConfigError([_unknown_size(name, [size.name for size in known], known[0])], "the command line")
    return models.parse(preset).layer_parameters()


def _find_preset(size: str, family: str) -> str | None:
    """Return the named model of a size, such as 9m or llama-9m."""
    known = [name for name, fields in models.presets.items() if fields["kind"] == family]
    return next((name for name in (size, f"{family}-{size}") if name in known), None)


def _unknown_size(name: str, own: Sequence[str], smallest: Size) -> Problem:
    family = smallest.spec.own_base(next(iter(smallest.spec.all_arms))).model.kind
    named = [n.removeprefix(f"{family}-") for n, fields in models.presets.items() if fields["kind"] == family]
    known = list(dict.fromkeys([*own, *named]))
    return Problem("--extrapolate", f"no such size. Accepted: {', '.join(known)}.{did_you_mean(name, known)}", name)


def _validate(sizes: Sequence[Size]) -> list[Problem]:
    problems = []
    if len(sizes) < 2:
        problems.append(Problem("sizes", "a comparison over sizes needs two or more", [size.name for size in sizes]))
    by_parameters: dict[int, str] = {}
    for size in sizes:
        if (other := by_parameters.setdefault(size.parameters, size.name)) != size.name:
            problems.append(Problem("sizes", f"{other} and {size.name} have the same number of parameters"))
        if not size.spec.confirm.seeds:
            problems.append(
                Problem("confirm.seeds", f"fresh seeds decide the comparison at {size.name}: set 3 or more")
            )
        if any(cell.point for cell in size.spec.cells.values()):
            text = "a sweep with a grid has no ladder: a curve over sizes needs one setting of each arm at each size"
            problems.append(Problem("confirm.at", text))
        if any(comparison.levels for comparison in size.spec.comparisons):
            text = "factorial has no ladder: its trends are those of arms against a baseline; take one-at-a-time"
            problems.append(Problem("design", text))
        if len(size.spec.all_arms) < 2 or list(size.spec.all_arms) != list(sizes[0].spec.all_arms):
            arms = ", ".join(size.spec.all_arms)
            problems.append(Problem("arms", f"every size needs the same two arms or more; {size.name} has {arms}"))
    return problems


FEWEST_RATES = 3
"""A minimum that is not at the edge has a rate on both sides."""


@dataclass(frozen=True)
class Chain:
    """The sizes of a file, the smallest first."""

    name: str
    axis: str
    """The axis along which they differ: width, depth, or parameters if both do."""
    path: str
    """The learning rate that is searched, as a dotted path."""
    sizes: list[Size]
    places: list[int]
    """For each size, its width, its number of layers or its parameters."""

    @property
    def arms(self) -> list[str]:
        """The arms of the file."""
        return list(self.sizes[0].spec.own_arms)

    def list_rates(self, k: int) -> list[float]:
        """Return the learning rates of the `k`-th size, ascending."""
        return sorted({float(cell.point[self.path]) for cell in self.sizes[k].spec.cells.values()})  # type: ignore[arg-type]

    def describe_heads(self) -> str:
        """Return a caveat where the attention heads of some arm differ in width between the sizes; '' where they do
        not."""
        widths = [
            {cell.arm: size.spec.own_base(name).model.stack().head_dim for name, cell in size.spec.cells.items()}
            for size in self.sizes
        ]
        if all(own == widths[0] for own in widths):
            return ""
        own = (
            f"{join_words(map(str, sorted({*by_arm.values()})), 'or')} at {size.name}"
            for size, by_arm in zip(self.sizes, widths, strict=True)
        )
        return (
            f"The heads differ in width ({', '.join(own)}), and the scale of attention with it, which is a second "
            "change beside the size: a movement of the best rate may be due to that. Set model.heads so that "
            "model.hidden / model.heads is the same at every size."
        )


def arrange_chain(named: Mapping[str, Sweep], source: str) -> Chain:
    """Return the sizes of a sweep file (name -> sweep), read from `source`, along one axis. Raises ConfigError with all
    that keeps them from telling whether a learning rate holds."""
    if problems := [*_check_sizes(named), *(p for name, spec in named.items() for p in _check_search(name, spec))]:
        raise ConfigError(problems, source)
    sizes = sorted((Size.of(name, spec) for name, spec in named.items()), key=lambda size: size.parameters)
    axis, places = _find_axis(sizes)
    if len(set(places)) < len(places):
        raise ConfigError([Problem("sizes", f"two have the same {axis}, by which sizes are distinguished")], source)
    path = next(iter(sizes[0].spec.search))
    stem = sizes[0].spec.name.removesuffix(f"-{sizes[0].name}")
    return Chain(f"{stem.removesuffix('-transfer')}-transfer", axis, path, sizes, places)


def _check_sizes(chosen: Mapping[str, Sweep]) -> list[Problem]:
    """Return the problems that keep the sizes from being compared."""
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
    """Return the problems that keep one size from showing a best learning rate."""
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


def _find_axis(sizes: Sequence[Size]) -> tuple[str, list[int]]:
    """Return the axis along which the sizes differ, and its value for each."""
    stacks = [size.spec.own_base(next(iter(size.spec.all_arms))).model.stack() for size in sizes]
    widths, depths = [stack.hidden for stack in stacks], [stack.depth for stack in stacks]
    if len(set(depths)) == 1:
        return "width", widths
    if len(set(widths)) == 1:
        return "depth", depths
    return "parameters", [size.parameters for size in sizes]
