"""The coordinate check of one recipe: small models of it at several widths and depths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ablate.config.errors import AblateError
from ablate.config.formatting import count_noun, join_words
from ablate.data.progress import show_progress
from ablate.diagnostics.coordinates.flatness import FLAT, LAYERS, Flatness, judge
from ablate.diagnostics.coordinates.recipes import Recipe
from ablate.diagnostics.coordinates.recording import Course, list_batches, train_and_record
from ablate.diagnostics.coordinates.sizes import AXES, Sizes, choose_sizes, resize
from ablate.diagnostics.measures.base import to_json_number
from ablate.diagnostics.opening.data import load_data
from ablate.norms import Placement


@dataclass(frozen=True)
class CheckSettings:
    """The sizes and the length of a coordinate check."""

    widths: Sequence[int] = ()
    """Empty: those of `WIDTHS`, or the nearest ones that have whole heads."""
    depths: Sequence[int] = ()
    """Empty: those of `DEPTHS`."""
    updates: int = 10
    """Updates of each model, at the recipe's peak learning rate."""
    seeds: int = 3
    """Initialisations over which numbers are averaged."""

    def __post_init__(self) -> None:
        for name in ("widths", "depths"):
            if unfit := [value for value in getattr(self, name) if value < 1]:
                raise AblateError(f"--{name}: must be whole numbers of at least 1, given {unfit[0]}")
        for name in ("updates", "seeds"):
            if getattr(self, name) < 1:
                raise AblateError(f"--{name}: must be a whole number of at least 1, given {getattr(self, name)}")


@dataclass(frozen=True)
class Coordinates:
    """The coordinate check of one recipe."""

    courses: Mapping[str, Mapping[int, Course]]
    """Axis -> size -> means over seeds."""
    judged: Sequence[Flatness]
    facts: Mapping[str, Any]
    """How it was taken."""
    data: str
    """One line about the data."""
    note: str = ""
    """That models of some depths have other placements than those of others; '' if they have the same."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each axis, size, part of the model and number of updates."""
        return [
            {"axis": axis, "size": size, "layer": part, "update": update, "activation": activation, "change": change}
            for axis, courses in self.courses.items()
            for size, course in courses.items()
            for part, values in course.items()
            for update, (activation, change) in enumerate(values)
        ]

    def is_flat(self, axis: str) -> bool:
        """Return whether the layers' activations and their change are within 10 % of each other along an axis."""
        return all(one.is_flat for one in self.judged if (one.axis, one.group) == (axis, LAYERS))

    def describe_flatness(self, axis: str) -> str:
        """Return in words whether the layers are flat along an axis, all sizes or all but the smallest."""
        own = [one for one in self.judged if (one.axis, one.group) == (axis, LAYERS)]
        rest = max((one.ratio_without_smallest for one in own), default=math.nan)
        smallest = min(self.courses[axis])
        return "flat" if self.is_flat(axis) else f"flat without {axis} {smallest}" if rest <= FLAT else "not flat"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a number that is not finite is null."""
        rows = [
            {key: to_json_number(value) if isinstance(value, float) else value for key, value in row.items()}
            for row in self.rows
        ]
        flat = {axis: self.is_flat(axis) for axis in self.courses}
        return {
            "flat": flat,
            "summary": [one.to_dict() for one in self.judged],
            "rows": rows,
            "facts": self.facts,
            "note": self.note,
        }


def check_coordinates(
    recipe: Recipe, settings: CheckSettings, data: Sequence[str], batch_tokens: int, device: torch.device
) -> Coordinates:
    """Return the coordinate check of `recipe`, on its own data or that of the `--data` words, in batches of at most
    `batch_tokens` tokens, or images. All models see the same batches. Raises AblateError."""
    sizes = choose_sizes(recipe.experiment.model, settings.widths, settings.depths)
    experiments = {size: resize(recipe.experiment, sizes, size) for size in sizes.all()}  # all mistakes before training
    experiment, corpus = load_data(recipe.experiment.to_tree(), data, "--data")
    items = max(1, min(experiment.trainer.batch_size, batch_tokens // experiment.items_per_sample))
    batches = list_batches(experiment, corpus, items, settings.updates)
    seeds = range(experiment.seed, experiment.seed + settings.seeds)
    trained = {}
    with show_progress(f"{recipe.label}: coordinates", len(experiments), "models") as advance:
        for done, (size, own) in enumerate(experiments.items()):
            advance(done)
            trained[size] = average([train_and_record(own, corpus, batches, seed, device) for seed in seeds])
    courses = {axis: {getattr(size, axis): trained[size] for size in sizes.of(axis)} for axis in AXES}
    judged = [one for axis in AXES for one in judge(axis, courses[axis])]
    facts = {**_describe(recipe, sizes), "updates": settings.updates, "seeds": settings.seeds, "batch": items}
    note = describe_placements(experiment.norm, [size.depth for size in sizes.of("depth")])
    return Coordinates(
        courses, judged, facts, f"batches of {count_noun(items, experiment.task.sample)} of {corpus.description}", note
    )


def describe_placements(norm: Placement, depths: Sequence[int]) -> str:
    """Return which depths have layers of which placements, if these differ: Mix-LN of a quarter has no Post-LN layer
    among two, so that the two are different models; otherwise ''."""
    by_kinds: dict[str, list[str]] = {}
    for depth in depths:
        kinds = join_words(dict.fromkeys(norm.at(index, depth).kind for index in range(depth)))
        by_kinds.setdefault(kinds, []).append(str(depth))
    if len(by_kinds) < 2:
        return ""
    parts = [f"with {join_words(numbers)} layers {kinds}" for kinds, numbers in by_kinds.items()]
    return f"Different models over the depth: {'; '.join(parts)}. Choose --depths that all have the same."


def _describe(recipe: Recipe, sizes: Sizes) -> dict[str, Any]:
    experiment = recipe.experiment
    return {
        "parametrization": experiment.parametrization.kind,
        "optimizer": experiment.optimizer.kind,
        "lr": experiment.optimizer.lr,
        "depth_of_widths": sizes.of("width")[0].depth,
        "width_of_depths": sizes.of("depth")[0].width,
    }


def average(courses: Sequence[Course]) -> Course:
    """Return the means over seeds."""
    return {
        part: [
            (_mean([values[0] for values in same]), _mean([values[1] for values in same]))
            for same in zip(*(course[part] for course in courses), strict=True)
        ]
        for part in courses[0]
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
