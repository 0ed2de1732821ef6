"""The sizes of a coordinate check, and the experiment of a recipe at each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ablate.config.errors import AblateError
from ablate.config.formatting import join_words
from ablate.experiment.tree import Experiment
from ablate.models import ModelConfig
from ablate.optim.parametrizations import Scaled

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
    """Return the width of which all widths are multiples that have whole heads, of queries and of keys and values, as
    wide as the model's."""
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
