"""The methods of an arm's search: every trial trains on its own, or all settings rung by rung.

A file names the method inside `search`, beside what is searched: `search: {method: rungs, keep: 0.33, optimizer.lr:
[...]}`. Adding a method is one class here or in a file of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from ablate.config.base import Kind
from ablate.config.bounds import MOST_SEED, MOST_TRIALS
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.experiment.tree import Experiment
from ablate.sweeps.search.space import Space, list_cells


@dataclass(frozen=True)
class Rung:
    """One stage of an arm's search, after which only the best settings go on."""

    settings: int
    """Settings of the arm that train to it."""
    updates: int
    """Length of the runs that are compared."""
    shared: int
    """Their first updates, which they have in common with a run to the end; the rest is the decay. 0: nothing, so that
    each is a whole short run."""
    trained: int
    """Updates that all runs of the arm together make in this rung."""


class SearchMethod(Kind):
    """A way of comparing the settings of an arm."""

    staged: ClassVar[bool] = False
    """Whether all settings are chosen before any is trained, and are trained rung by rung."""

    def count_candidates(self, settings: int | None) -> int | None:
        """Return how many of so many settings may be compared before one is tested; None: it is not known."""
        return settings

    def validate_arm(self, settings: int, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems that keep it from comparing so many settings of `experiment`. The paths of its own fields
        begin with search, others with experiment."""
        yield from ()

    def plan_rungs(self, settings: int, experiment: Experiment) -> Sequence[Rung]:
        """Return the rungs by which it compares so many settings of `experiment`; none: every trial is one run."""
        return ()

    def find_share(self, settings: int, experiment: Experiment) -> float:
        """Return the tokens that it takes, as a share of those of training so many settings to the end."""
        rungs = self.plan_rungs(settings, experiment)
        whole = settings * experiment.trainer.max_steps
        return sum(rung.trained for rung in rungs) / whole if rungs and whole else 1.0

    def describe(self) -> str:
        """Return a plan's line on it; '' for the usual method."""
        return ""


methods: Registry[SearchMethod] = Registry("search method", SearchMethod, default="trials")


@methods.register
class Trials(SearchMethod):
    """Each trial is one run, which the sampler proposes and the pruner may stop."""

    kind: Literal["trials"] = "trials"


def move_method(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep's `tree` with the method that its `search` names, and the fields beside it, under `method`."""
    search = tree.get("search")
    if not isinstance(search, Mapping) or "method" not in search:
        return dict(tree)
    named = search["method"]
    own = {name: value for name, value in search.items() if name != "method" and not _is_path(name)}
    method = {**own, **(named if isinstance(named, Mapping) else {"kind": named})}
    return {**tree, "search": drop_method(search), "method": method}


def return_method(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep's `tree` with its method and the fields of it back in `search`: the inverse of `move_method`."""
    if "method" not in tree:
        return dict(tree)
    named = tree["method"]
    fields = dict(named) if isinstance(named, Mapping) else {"kind": named}
    method = {"method": fields.pop("kind"), **fields} if "kind" in fields else {}
    rest = {key: value for key, value in tree.items() if key != "method"}
    return {**rest, "search": {**(tree.get("search") or {}), **method}}


def describe_with_method(schema: dict[str, Any]) -> None:
    """Let the JSON schema of `search` take a method, and its fields beside it, besides what is searched."""
    for part in schema.get("anyOf", [schema]):  # it may be None
        if "additionalProperties" in part:
            part["properties"] = {"method": {"enum": list(methods), "type": "string"}}
            part["additionalProperties"]["anyOf"].append({"type": "number"})


def drop_method(search: Any) -> Any:
    """Return the search space, without the method and its fields."""
    if not isinstance(search, Mapping) or "method" not in search:
        return search
    return {path: entry for path, entry in search.items() if _is_path(path)}


def _is_path(name: Any) -> bool:
    """Return whether a key of `search` names a setting of an experiment; others are fields of the method."""
    return not isinstance(name, str) or "." in name or name in Experiment.model_fields


class SamplerConfig(Kind):
    """A rule for choosing the next trial of an arm. The same seed gives every arm the same first points."""

    learns: ClassVar[bool] = True
    """Whether its proposals depend on trials that have ended."""
    learns_from_pruned: ClassVar[bool] = True
    """Whether it learns from trials that a pruner has stopped, where it learns at all."""

    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Seed of the proposals, which also depend on the number of the trial and the finished trials."""

    def derive_seed(self, number: int) -> int:
        """Return a random seed for the trial `number`."""
        return int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        """Return the reason that this sampler cannot search `space`."""
        return []


samplers: Registry[SamplerConfig] = Registry("sampler", SamplerConfig, default="gp")


def choose_plain_sampler(space: Mapping[str, Any]) -> str:
    """Return the sampler for the entries of a file that does not learn from trials: the grid where each entry says its
    values, otherwise random."""
    lists = (not isinstance(entry, Mapping) or entry.get("num") for entry in space.values())
    return "grid" if all(lists) else "random"


class LearningSampler(SamplerConfig):
    """A sampler with a model of the objective."""

    n_startup_trials: int = Field(5, ge=1, le=MOST_TRIALS)
    """Number of random trials before the model is used."""


@samplers.register
class Tpe(LearningSampler):
    """Tree-structured Parzen estimator, multivariate, taking running trials into account."""

    kind: Literal["tpe"] = "tpe"


@samplers.register
class Gp(LearningSampler):
    """Gaussian process with expected improvement, taking running trials into account. It does not learn from pruned
    trials."""

    kind: Literal["gp"] = "gp"
    learns_from_pruned: ClassVar[bool] = False


@samplers.register
class Random(SamplerConfig):
    """Independent random points."""

    kind: Literal["random"] = "random"
    learns: ClassVar[bool] = False


@samplers.register
class Grid(Random):
    """Every combination once, in order. Each entry of the search is a list, or a range of whole numbers or
    with `num`."""

    kind: Literal["grid"] = "grid"  # type: ignore[assignment]  # its cells are given to Optuna: it never draws one

    def validate(self, space: Space) -> list[Problem]:  # type: ignore[override]
        problems = []
        for path, entry in space.items():
            try:
                list_cells({path: entry})
            except ValueError as error:
                problems.append(Problem("search", f"{path}: {error}"))
        if not problems:
            try:
                list_cells(space)
            except ValueError as error:
                problems.append(Problem("search", str(error)))
        return problems


class PrunerConfig(Kind):
    """A rule for stopping a trial that is worse than the other trials of its arm. Trials of other arms are never
    considered."""

    stops_trials: ClassVar[bool] = True
    """Whether it ever stops one."""

    @staticmethod
    def find_first_step(max_steps: int, warmup: int) -> int:
        """Return the first update at which a trial may be pruned: a third of the run, after the warm-up. Earlier
        comparisons favour high learning rates."""
        return max(math.ceil(max_steps / 3), warmup + 1)


pruners: Registry[PrunerConfig] = Registry("pruner", PrunerConfig, default="none")


@pruners.register
class NoPruner(PrunerConfig):
    """Every trial runs to its end."""

    kind: Literal["none"] = "none"
    stops_trials: ClassVar[bool] = False


@pruners.register
class Median(PrunerConfig):
    """Stops a trial whose best value so far is worse than the median of its arm's earlier trials at that update, from a
    third of the run on, after the warm-up and the first four trials."""

    kind: Literal["median"] = "median"
