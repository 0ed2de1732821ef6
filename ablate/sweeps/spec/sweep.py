"""`Sweep`: a YAML file with the arms, the search space and the budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablate.config.building import describe_errors, load_plugins
from ablate.config.errors import ConfigError, Problem
from ablate.experiment.tree import Experiment
from ablate.sweeps.search.methods import move_method
from ablate.sweeps.spec.fields import SweepFields
from ablate.sweeps.spec.parts import Objective
from ablate.sweeps.spec.trees import apply_overrides, load_trees
from ablate.sweeps.spec.validation import validate, validate_rest
from ablate.tasks import tasks


class Sweep(SweepFields):
    """A sweep. Every arm gets the same budget, the same data in the same order and the same seed."""

    @classmethod
    def load(cls, file: str | Path, overrides: Mapping[str, Any] | None = None, size: str | None = None) -> Sweep:
        """Return the sweep in a YAML file; for a file with sizes or stages, the sweep of `size`. `overrides` are dotted
        paths of the base experiment (trainer.max_steps) or of the sweep itself (budget.trials, sampler, pruner,
        objective.metric, name). Raises ConfigError with all problems."""
        divided = load_trees(file, overrides, [size] if size else ())
        if len(divided.trees) > 1:
            text = f"the file has several: choose one of {', '.join(divided.trees)}"
            raise ConfigError([Problem(f"{divided.word}s", text)], str(file))
        ((at, tree),) = divided.trees.items()
        own = divided.overrides(overrides or {}, at)
        tree = divided.add_family(apply_overrides(cls, tree, own, str(file)), overrides or {}, at)
        return cls.from_tree(tree, divided.source(file, at))

    def follow_task(self, tree: Mapping[str, Any]) -> Sweep:
        """Return the sweep with the objective of its task, where the `tree` that it was read from names none."""
        given = tree.get("objective")
        if given is not None and (not isinstance(given, Mapping) or given.get("metric") is not None):
            return self
        task = self.task
        metric = tasks[task].objective if task in tasks else self.objective.metric
        if metric == self.objective.metric:
            return self
        objective = Objective.model_validate({**(given or {}), "metric": metric})
        return type(self).model_validate({**dict(tree), "objective": objective})

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], source: str = "the sweep") -> Sweep:
        """Return the sweep of nested mappings, checked together with its experiments."""
        for key in ("sizes", "stages"):
            if isinstance(parts := tree.get(key), Mapping) and parts:
                text = f"divides the file into several sweeps, and one is needed: {', '.join(map(str, parts))}"
                raise ConfigError([Problem(key, text)], source)
        load_plugins(tree, source=source)
        try:
            sweep = cls.model_validate(dict(tree))
        except ValidationError as error:
            problems = [_point_inside(problem) for problem in describe_errors(cls, move_method(tree), error)]
            problems = [_point_at_method(problem, tree) for problem in problems]
            raise ConfigError([*problems, *validate_rest(cls, tree, problems)], source) from None
        if problems := validate(sweep):
            raise ConfigError(problems, source)
        followed = sweep.follow_task(tree)
        if followed is not sweep and (problems := validate(followed)):
            raise ConfigError(problems, source)
        return followed


def _point_inside(problem: Problem) -> Problem:
    """Return the problem with a better hint if it is a key of the experiment at the top of the file."""
    if problem.path in Experiment.model_fields and problem.message.startswith("unknown key"):
        return replace(problem, message="belongs to the experiment: indent it below experiment:", given=None)
    return problem


def _point_at_method(problem: Problem, tree: Mapping[str, Any]) -> Problem:
    """Return the problem with its place in the file, where the method and its fields stand in `search`."""
    part, _, field = problem.path.partition(".")
    if part != "method" or part in tree:
        return problem
    message = problem.message.replace("Did you mean method.", "Did you mean search.")
    return replace(problem, path=f"search.{field if field and field != 'kind' else 'method'}", message=message)
