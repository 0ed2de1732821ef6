"""The recipes of models: the experiment of a run, of an experiment's file, or of each arm of a sweep's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate.config.errors import AblateError
from ablate.config.formatting import join_words
from ablate.config.yaml import SUFFIXES, read_yaml
from ablate.diagnostics.opening import split_label
from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.scheduler.donors import resolve_run
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.references import PREFIX
from ablate.training.trained import open_trained

_OF_SWEEPS = {"arms", "search", "experiment", "name", "sizes", "stages", "components"}
"""Keys that a sweep file has and an experiment's has not."""
_WITHOUT = {
    "hf:": "a model of transformers",
    "timm:": "a model of timm",
    "init:": "the weights before the first update",
}
"""Prefix of a name -> what it stands for, which is no recipe."""


@dataclass(frozen=True)
class Recipe:
    """How models of one kind are trained."""

    label: str
    experiment: Experiment
    run_id: str | None = None
    """The MLflow run that it is of."""


def is_recipe_file(name: str) -> bool:
    """Return whether the name of a model, without LABEL=, is that of a file of an experiment or a sweep."""
    return Path(name).suffix in SUFFIXES


def open_recipes(name: str) -> list[Recipe]:
    """Return the recipe of a run's id, a checkpoint, `sweep:NAME/ARM` or an experiment's file, or those of all arms of
    a sweep file, of its first size or stage if it has several; the name may start with LABEL=. Raises AblateError."""
    label, rest = split_label(name)
    if prefix := next((one for one in _WITHOUT if rest.startswith(one)), None):
        raise AblateError(
            f"{rest}: {_WITHOUT[prefix]} has no recipe to train other sizes by. coordinates takes a run's id, a "
            "checkpoint, sweep:NAME/ARM, or the file of an experiment or a sweep."
        )
    if not is_recipe_file(rest):
        source = open_trained(resolve_run(rest))
        own = rest.rpartition("/")[2] if rest.startswith(PREFIX) else source.file.absolute().parent.name[:8]
        recipes = [Recipe(label or own, source.experiment, source.run_id)]
    elif _OF_SWEEPS & set(read_yaml(Path(rest))):
        spec = load_sweeps(rest)[0].without_grid()
        recipes = [Recipe(f"{label} {arm}".strip(), spec.base(arm)) for arm in spec.all_arms]
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
