"""The rungs of a scaling ladder: the arms of a sweep file at several sizes, each tuned there.

Each rung is a sweep of its own, so a ladder can be stopped and continued. Sizes are the weights in the matrices of the
layers, without embedding, head and norms: that is what placements act on, and no tokenizer changes it (as in
Kaplan et al. 2020, arXiv 2001.08361). Tokens per parameter count the same parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.sweeps.spec.fields import count_others
from ablate.sweeps.spec.scale import change_length, resize
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.transfer_validation import check_sizes
from ablate.sweeps.spec.trees import apply_overrides, load_trees


@dataclass(frozen=True)
class Rung:
    """One size of a ladder."""

    size: str
    parameters: int
    """Weights in the matrices of the layers."""
    items: int
    """Tokens or images of one trial."""
    spec: Sweep

    def share_with(self, others: int) -> Rung:
        """Return the rung, whose comparisons share their error with at least so many of other sizes."""
        return replace(self, spec=self.spec.share_with(others))

    @classmethod
    def of(cls, size: str, spec: Sweep) -> Rung:
        """Return the rung of `spec`."""
        base = spec.base(next(iter(spec.all_arms)))
        return cls(size, base.model.layer_parameters(), base.items, spec)


def build_rungs(
    file: str | Path,
    sizes: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    tokens_per_parameter: float | None = None,
) -> list[Rung]:
    """Return the rungs of a sweep file, the smallest first.

    Args:
        file: the sweep file.
        sizes: names of sizes of the file, or of models (9m for llama-9m); by default all sizes of the file.
        overrides: dotted paths, applied to every rung.
        tokens_per_parameter: the length of every rung. By default a size of the file has its own, and a model has as
            many tokens for each parameter as the smallest size of the file.

    A model is trained with the settings of the file's smallest size, warm-up and validations at the same shares of the
    run. Raises ConfigError for fewer than two sizes, unknown ones, two of one size, and without fresh seeds.
    """
    source = str(file)
    held = load_trees(file, overrides, None)
    if held.word == "stage":
        raise ConfigError([Problem("stages", "a ladder compares sizes, and this file has stages")], source)
    trees = held.trees
    own = {
        name: Rung.of(
            name,
            Sweep.from_tree(
                held.add_family(apply_overrides(Sweep, tree, overrides or {}, source), overrides or {}, name),
                held.source(file, name),
            ),
        )
        for name, tree in trees.items()
    }
    smallest = min(own.values(), key=lambda rung: rung.parameters)
    ratio = tokens_per_parameter or smallest.items / smallest.parameters
    wanted = list(dict.fromkeys(sizes)) or [name for name in own if name]
    stem = str(Sweep.from_tree(trees[smallest.size]).name).removesuffix(f"-{smallest.size}" if smallest.size else "")
    chosen, problems = [], []
    for size in wanted:
        rung = own.get(size) or _build_model_rung(size, smallest, stem, ratio)
        if rung is None:
            problems.append(_unknown_size(size, [name for name in own if name], smallest))
        elif tokens_per_parameter and size in own:
            chosen.append(_lengthen(rung, ratio, f"{rung.spec.name}-{ratio:g}per"))
        else:
            chosen.append(rung)
    if problems:
        raise ConfigError(problems, source)
    others = count_others([rung.spec for rung in chosen])
    sharing = [rung.share_with(count) for rung, count in zip(chosen, others, strict=True)]
    return arrange_rungs(sharing, source)


def arrange_rungs(rungs: Sequence[Rung], source: str) -> list[Rung]:
    """Return the rungs of a ladder, read from `source`, the smallest first. Raises ConfigError as `build_rungs`
    does."""
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
        raise ConfigError(
            [_unknown_size(size, [rung.size for rung in known], known[0], "--extrapolate")], "the command line"
        )
    return models.parse(preset).layer_parameters()


def _find_preset(size: str, family: str) -> str | None:
    """Return the named model of a size, such as 9m or llama-9m."""
    known = [name for name, fields in models.presets.items() if fields["kind"] == family]
    return next((name for name in (size, f"{family}-{size}") if name in known), None)


def _build_model_rung(size: str, smallest: Rung, stem: str, ratio: float) -> Rung | None:
    """Return the rung of a named model; None if the family has no such model."""
    base = smallest.spec.base(next(iter(smallest.spec.all_arms)))
    preset = _find_preset(size, base.model.kind)
    if preset is None:
        return None
    fields = {f"model.{field}": value for field, value in models.presets[preset].items() if field != "kind"}
    tree = {**resize(smallest.spec, lambda full: fields), "name": f"{stem}-{size}-{ratio:.4g}per", "published": []}
    return _lengthen(Rung.of(size, Sweep.from_tree(tree)), ratio, tree["name"])


def _lengthen(rung: Rung, ratio: float, name: str) -> Rung:
    """Return the rung trained on `ratio` tokens for each parameter."""

    def changes(full: Experiment) -> dict[str, Any]:
        trainer = full.trainer
        return change_length(full, ratio * rung.parameters / full.items * trainer.max_steps)

    return Rung.of(rung.size, Sweep.from_tree({**resize(rung.spec, changes), "name": name}))


def _unknown_size(size: str, own: Sequence[str], smallest: Rung, path: str = "--sizes") -> Problem:
    family = smallest.spec.base(next(iter(smallest.spec.all_arms))).model.kind
    named = [n.removeprefix(f"{family}-") for n, fields in models.presets.items() if fields["kind"] == family]
    known = list(dict.fromkeys([*own, *named]))
    return Problem(path, f"no such size. Accepted: {', '.join(known)}.{did_you_mean(size, known)}", size)


def _validate(rungs: Sequence[Rung]) -> list[Problem]:
    problems = []
    if len(rungs) < 2:
        problems.append(
            Problem("--sizes", "a ladder needs two sizes or more, as --sizes 9m,20m,35m", [rung.size for rung in rungs])
        )
    by_parameters: dict[int, str] = {}
    for rung in rungs:
        if (other := by_parameters.setdefault(rung.parameters, rung.size)) != rung.size:
            problems.append(Problem("--sizes", f"{other} and {rung.size} have the same number of parameters"))
        if not rung.spec.confirm.seeds:
            problems.append(
                Problem("confirm.seeds", f"fresh seeds decide the comparison at {rung.size}: set 3 or more")
            )
        if rung.spec.at_grid:
            text = "a sweep with a grid has no ladder: a curve over sizes needs one setting of each arm at each size"
            problems.append(Problem("confirm.at", text))
        if rung.spec.contrasts:
            text = "factorial has no ladder: its trends are those of arms against a baseline; take one-at-a-time"
            problems.append(Problem("design", text))
        if len(rung.spec.all_arms) < 2 or list(rung.spec.all_arms) != list(rungs[0].spec.all_arms):
            arms = ", ".join(rung.spec.all_arms)
            problems.append(Problem("arms", f"every size needs the same two arms or more; {rung.size} has {arms}"))
    ordered = sorted(rungs, key=lambda rung: rung.parameters)
    return [*problems, *check_sizes({rung.size: rung.spec for rung in ordered})]
