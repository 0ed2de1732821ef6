"""The recipes of models: the experiment of a run, of an experiment's file, or of each arm of a sweep's; and
the sizes at which they are checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate.config.errors import AblateError
from ablate.config.formatting import join_words
from ablate.config.yaml import SUFFIXES, read_yaml
from ablate.diagnostics.opening import split_label
from ablate.experiment.tree import Experiment
from ablate.models import ModelConfig, models
from ablate.optim.parametrizations import Scaled
from ablate.scheduler.donors import resolve_run
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.references import PREFIX
from ablate.training.trained import open_trained

_OF_SWEEPS = {"arms", "search", "experiment", "name", "sizes", "stages", "components"}
"""Keys of a sweep file that an experiment's file does not have."""
_WITHOUT = {
    "hf:": "a model of transformers",
    "timm:": "a model of timm",
    "init:": "the weights before the first update",
}
"""Prefix of a name -> its meaning, which is not a recipe."""


@dataclass(frozen=True)
class Recipe:
    """The training of models of one kind."""

    label: str
    experiment: Experiment
    run_id: str | None = None
    """Its MLflow run."""


def is_recipe_file(name: str) -> bool:
    """Return whether the name of a model, without LABEL=, is that of a file of an experiment or a sweep."""
    return Path(name).suffix in SUFFIXES


def open_recipes(name: str) -> list[Recipe]:
    """Return the recipe of a run's id, a checkpoint, `sweep:NAME/ARM` or an experiment's file, or those of all arms of
    a sweep file, of its first size or stage if it has several; the name may start with LABEL=. Raises AblateError."""
    label, rest = split_label(name)
    if prefix := next((one for one in _WITHOUT if rest.startswith(one)), None):
        raise AblateError(
            f"{rest}: {_WITHOUT[prefix]} has no recipe for training other sizes. coordinates takes a run's id, a "
            "checkpoint, sweep:NAME/ARM, or the file of an experiment or a sweep."
        )
    if not is_recipe_file(rest):
        source = open_trained(resolve_run(rest))
        own = rest.rpartition("/")[2] if rest.startswith(PREFIX) else source.file.absolute().parent.name[:8]
        recipes = [Recipe(label or own, source.experiment, source.run_id)]
    elif _OF_SWEEPS & set(read_yaml(Path(rest))):
        spec = load_sweeps(rest)[0].without_grid()
        recipes = [Recipe(f"{label} {arm}".strip(), spec.own_base(arm)) for arm in spec.all_arms]
    else:
        recipes = [Recipe(label or Path(rest).stem, Experiment.load(rest))]
    for recipe in recipes:
        _refuse_unfit(recipe)
    return recipes


def _refuse_unfit(recipe: Recipe) -> None:
    """Raise AblateError for a recipe that does not train a model of any size from the beginning."""
    experiment = recipe.experiment
    parts = {"warm_start": experiment.warm_start, "lora": experiment.lora, "align": experiment.align}
    if used := [name for name, part in parts.items() if part is not None]:
        raise AblateError(
            f"{recipe.label} has {join_words(used)}, which is for a model whose size is given. coordinates compares "
            "sizes: take a recipe that trains from the beginning."
        )
    if not experiment.model.scales:
        fitting: Sequence[str] = [kind for kind in models if models[kind].scales]
        raise AblateError(
            f"{recipe.label}: model {experiment.model.title} has no width and depth that coordinates could set. "
            f"Accepted: {join_words(fitting)}."
        )


WIDTHS = (32, 64, 128, 256, 512)
DEPTHS = (2, 4, 8, 16, 32)
AXES = ("width", "depth")


@dataclass(frozen=True)
class Size:
    """Width and depth of a model."""

    width: int
    depth: int


@dataclass(frozen=True)
class Sizes:
    """The widths, which are compared at one depth, and the depths, which are compared at one width: each time at the
    second smallest, as the smallest model may be too small to be like the others."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]

    def of(self, axis: str) -> list[Size]:
        """Return the sizes along an axis, "width" or "depth", the smallest first."""
        if axis == "width":
            return [Size(width, self.depths[1]) for width in self.widths]
        return [Size(self.widths[1], depth) for depth in self.depths]

    def all(self) -> list[Size]:
        """Return each size once."""
        return list(dict.fromkeys(size for axis in AXES for size in self.of(axis)))


def choose_sizes(model: ModelConfig, widths: Sequence[int], depths: Sequence[int]) -> Sizes:
    """Return the sizes at which a recipe for `model` is checked. Without `widths` they are those of `WIDTHS` that have
    whole heads of the model's width, or the nearest that do. Raises AblateError."""
    step = find_step(model)
    chosen = widths or {max(1, round(width / step)) * step for width in WIDTHS}
    if unfit := [width for width in chosen if width % step]:
        raise AblateError(
            f"--widths {join_words(map(str, unfit))}: no whole number of heads like those of the model, whose head_dim "
            f"is {model.stack().head_dim}. Accepted: multiples of {step}."
        )
    return Sizes(_sort("--widths", chosen), _sort("--depths", depths or DEPTHS))


def find_step(model: ModelConfig) -> int:
    """Return the smallest width with whole heads, of queries and of keys and values, as wide as the model's; its
    multiples have whole heads too."""
    return model.hidden // math.gcd(model.hidden, model.stack().kv_heads)


def resize(experiment: Experiment, sizes: Sizes, size: Size) -> Experiment:
    """Return the recipe of `experiment` at one of `sizes`, the smallest of which are the base of its parametrisation.
    Raises ConfigError for a recipe that does not exist at that size."""
    fields = {f"model.{name}": value for name, value in experiment.model.resized(size.width).items()}
    if isinstance(experiment.parametrization, Scaled):
        smallest = {"hidden": sizes.widths[0], "layers": sizes.depths[0], "head_dim": None}
        fields |= {f"parametrization.base.{name}": value for name, value in smallest.items()}
    source = f"the recipe with {size.depth} layers of width {size.width}"
    return Experiment.from_mapping(experiment.to_tree(), fields, {"model.layers": size.depth}, source=source)


def _sort(name: str, values: Sequence[int] | set[int]) -> tuple[int, ...]:
    chosen = tuple(sorted(set(values)))
    if len(chosen) < 2:
        raise AblateError(f"{name} {chosen[0]}: one size cannot be compared. Accepted: two or more, such as 32,128.")
    return chosen
