"""`Sweep`: a YAML file that says what varies, what is searched, and at what cost."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from ablate.config import plugins
from ablate.config.base import Config, Names
from ablate.config.building import load_plugins
from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.merging import Tree, leaves
from ablate.config.messages import problems_of
from ablate.experiment.tree import Experiment
from ablate.sweeps import stages
from ablate.sweeps.search.methods import PrunerConfig, SamplerConfig, pruners, samplers
from ablate.sweeps.spec import audit
from ablate.sweeps.spec.parts import Arm, Budget, Confirm, Objective, Point, Published, Scale, Size, Stage
from ablate.sweeps.spec.search_space import Choice, Entry, Range, Space, cells, contains, shown
from ablate.sweeps.spec.trees import load_trees, overridden

DEFAULT_TRIALS = 10
COMBINATIONS = 256  # of the ends of a search space that are checked together; larger spaces are checked path by path
ONLY_ARM = "all"  # the arm of a sweep that names none


class Sweep(Config):
    """A sweep. Every arm gets the same budget, the same data in the same order and the same seed."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    """Names the studies and the MLflow experiment."""
    plugins: Names = ()
    """Python files of one's own, relative to the current directory, whose kinds can be used like any other."""
    experiment: dict[str, Any] = {}
    """The base experiment: what the arms share."""
    arms: dict[str, Arm] = {}
    """Name -> settings. Without arms the sweep is one study."""
    search: dict[str, Entry] = {}
    """Dotted path -> range or list of values, searched for every arm on its own."""
    objective: Objective = Objective()
    """What is compared."""
    budget: Budget = Budget()
    """What each arm may cost."""
    sampler: Annotated[SamplerConfig, samplers] = Field("tpe", validate_default=True)
    """Where the next trial is taken from."""
    pruner: Annotated[PrunerConfig, pruners] = Field("none", validate_default=True)
    """When a trial is stopped early."""

    fixed: list[Point] = []
    """Points that the search of every arm starts from, such as published settings; what one leaves out is drawn."""
    confirm: Confirm = Confirm()
    """Fresh seeds for the best settings of each arm."""
    baseline: str | None = None
    """The arm that the others are compared with once they are confirmed. None: the first."""
    factor: Names = ()
    """What is compared: the paths, or the parts that they begin with, in which arms are meant to differ. None given:
    the placement, the norm layer, the initialisation or the warm start: the first of these in which arms differ."""
    confounds: Names = ()
    """Further paths or parts in which arms differ on purpose. Any other difference is refused; these are reported."""
    published: list[Published] = []
    """Figures of papers to be shown beside ours."""
    scale: Scale | None = None
    """What the full setting is, where `--scale` made this a smaller one."""
    sizes: dict[str, Size] = Field({}, exclude=True)
    """Name -> size: each makes a sweep of its own, called NAME-SIZE. Loading a file gives those sweeps."""
    stages: dict[str, Stage] = Field({}, exclude=True)
    """Name -> stage: each makes a sweep of its own, called NAME-STAGE, and they run one after another; the arms of one
    start from those of an earlier one by warm_start.from: sweep:NAME-STAGE/ARM."""
    checkpoints: Literal["best", "all", "none"] = "best"
    """Which finished trials keep their checkpoint: the best of each arm and of its confirmation, all, or none."""

    @model_validator(mode="after")
    def _has_baseline(self) -> Sweep:
        if self.baseline is not None and self.baseline not in self.all_arms:
            raise ValueError(f"baseline is not an arm, given {self.baseline!r}. Accepted: {', '.join(self.all_arms)}")
        return self

    @field_validator("arms")
    @classmethod
    def _named(cls, arms: dict[str, Arm]) -> dict[str, Arm]:
        if bad := [name for name in arms if not name or "/" in name or "@" in name]:
            raise ValueError(f"the name of an arm is not empty and has no / or @, given {', '.join(map(repr, bad))}")
        return arms

    @classmethod
    def load(cls, file: str | Path, overrides: Mapping[str, Any] | None = None, size: str | None = None) -> Sweep:
        """The sweep in a YAML file, of a file with sizes or stages that of `size`. `overrides` are dotted paths of the
        base experiment (trainer.max_steps) or of the sweep itself (budget.trials, sampler, pruner, objective.metric,
        name). Raises ConfigError with all problems."""
        found = load_trees(file, overrides, size)
        if len(found.trees) > 1:
            text = f"there are several: give one of {', '.join(found.trees)}"
            raise ConfigError([Problem(f"{found.word}s", text)], str(file))
        ((at, tree),) = found.trees.items()
        own = found.overrides(overrides or {}, at)
        return cls.from_tree(overridden(cls, tree, own, str(file)), found.source(file, at))

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any], source: str = "the sweep") -> Sweep:
        """The sweep of nested mappings, checked together with the experiments that it leads to."""
        for key in ("sizes", "stages"):
            if tree.get(key):
                text = f"makes several sweeps of it, and one is wanted: {', '.join(map(str, tree[key]))}"
                raise ConfigError([Problem(key, text)], source)
        load_plugins(tree, source=source)
        try:
            sweep = cls.model_validate(dict(tree))
        except ValidationError as error:
            problems = problems_of(cls, dict(tree), error)
            raise ConfigError([*problems, *cls._further(tree, problems)], source) from None
        if problems := list(sweep._problems()) or [*stages.problems(sweep), *audit.problems(sweep)]:
            raise ConfigError(problems, source)
        return sweep

    @classmethod
    def _further(cls, tree: Mapping[str, Any], problems: Iterable[Problem]) -> Iterator[Problem]:
        """What is wrong besides `problems` of the file itself, as far as it can be told without what they are in."""
        broken = {problem.path.partition(".")[0] for problem in problems}
        if broken.isdisjoint(("experiment", "plugins", "arms", "search", "fixed", "sampler")):
            with contextlib.suppress(ValidationError):
                rest = {key: value for key, value in tree.items() if key not in broken}
                yield from cls.model_validate({"name": "unnamed", **rest})._problems()

    def to_tree(self) -> Tree:
        """The sweep as plain nested mappings."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_yaml(self) -> str:
        """The sweep as YAML."""
        return yaml.safe_dump(self.to_tree(), sort_keys=False)

    # ------------------------------------------------------------------ what it leads to

    @property
    def all_arms(self) -> dict[str, Arm]:
        """The arms; one named "all" where the file names none."""
        return self.arms or {ONLY_ARM: Arm()}

    def space(self, arm: str) -> Space:
        """What is searched for `arm`."""
        return {**self.search, **self.all_arms[arm].search}

    def base(self, arm: str) -> Experiment:
        """The experiment of `arm` at the first values of its search space."""
        if arm not in self._bases:
            self._bases[arm] = self.at(arm, {path: values[0] for path, values in self.corners(arm).items()})
        return self._bases[arm]

    @cached_property
    def _bases(self) -> dict[str, Experiment]:
        """Those that have been asked for: building one takes milliseconds, and each trial asks for all."""
        return {}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Sweep:
        """As of every configuration; the copy has experiments of its own."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("_bases", None)
        return copied

    def at(self, arm: str, params: Mapping[str, Any]) -> Experiment:
        """The experiment of `arm` at the point `params` of its search space."""
        return Experiment.from_mapping(*self._layers(arm), params)

    @property
    def compared_with(self) -> str:
        """The arm that the others are compared with."""
        return self.baseline or next(iter(self.all_arms))

    def fresh_seeds(self) -> list[int]:
        """The seeds of the confirmation: the first above all that any arm is tuned on."""
        tuned = [self.base(arm).seed for arm in self.all_arms]
        tuned += [int(v) for arm in self.all_arms for v in self.corners(arm).get("seed", []) if isinstance(v, int)]
        return [max(tuned) + 1 + i for i in range(self.confirm.seeds)]

    @property
    def plugin_files(self) -> tuple[str, ...]:
        """The plugins of the sweep, of its base experiment and of all arms."""
        layers = [layer for arm in self.all_arms for layer in self._layers(arm)]
        return tuple(plugins.merge_plugins(*(layer.get("plugins") for layer in layers)))

    def _layers(self, arm: str) -> tuple[Mapping[str, Any], ...]:
        """What the experiments of `arm` have in common, later over earlier."""
        return {"plugins": self.plugins}, self.experiment, self.all_arms[arm].settings

    def trials(self, arm: str) -> int | None:
        """How many finished trials `arm` may have: the budget, or every cell of a smaller grid. None where tokens or
        hours alone limit it."""
        wanted = self.budget.trials
        if self.sampler.kind == "grid":
            count = len(cells(self.space(arm)))
            return min(wanted or count, count)
        return wanted or (None if self.budget.tokens or self.budget.hours else DEFAULT_TRIALS)

    def starts(self, arm: str) -> list[Point]:
        """The points that the search of `arm` begins with."""
        return [*self.all_arms[arm].fixed, *self.fixed]

    def corners(self, arm: str) -> dict[str, list[Choice]]:
        """Dotted path -> the ends of its range, or all of its values, for everything that `arm` searches."""
        return {path: e.ends() if isinstance(e, Range) else list(e) for path, e in self.space(arm).items()}

    def _problems(self) -> Iterator[Problem]:
        """What is wrong with the experiments of each arm, at the ends of everything that is searched."""
        for arm in self.all_arms:
            where = f"arms.{arm}." if self.arms else ""
            settings = self.all_arms[arm].settings
            base = build_problems(*self._layers(arm))
            yield from (Problem(self._origin(arm, p.path), p.message, p.given) for p in base)
            if base:
                continue
            for path in self.space(arm):
                if any(path == key for key, _ in leaves(settings)):
                    yield Problem(f"arms.{arm}.{path}", "is set here and searched too; leave one of them out")
            alone = list(self._problems_of_each(arm, where))
            yield from alone or self._problems_together(arm, where)
            for text in self.sampler.problems(self.space(arm)):
                yield Problem(f"{where}search", text)
            yield from self._problems_of_starts(arm, where)
            if not self.space(arm) and self.trials(arm) != 1 and self.sampler.kind != "grid":
                trials = f"all {count} trials" if (count := self.trials(arm)) else "all trials"
                yield Problem(f"{where}search", f"nothing is searched, so {trials} would be the same")
            if not alone:
                yield from self._problems_of_pruner(self.base(arm))
        for published in self.published:
            for arm in published.values:
                if arm not in self.all_arms:
                    text = f"{arm} is not an arm. Accepted: {', '.join(self.all_arms)}."
                    yield Problem("published", text + did_you_mean(arm, self.all_arms))

    def _problems_of_pruner(self, base: Experiment) -> Iterator[Problem]:
        """The first rung, where it is given: early comparisons favour high learning rates."""
        steps, given = base.trainer.max_steps, self.pruner.first_step
        if given is None:
            return
        earliest = self.pruner.earliest(steps, base.schedule.warmup(steps))
        if not earliest <= given <= steps:
            text = (
                f"must be from {earliest} (a third of trainer.max_steps, after the warm-up: earlier comparisons favour "
                f"high learning rates) to trainer.max_steps ({steps})"
            )
            yield Problem("pruner.first_step", text, given)

    def _problems_of_starts(self, arm: str, where: str) -> Iterator[Problem]:
        """Fixed points that cannot be tried."""
        space = self.space(arm)
        for i, point in enumerate(self.starts(arm)):
            own = i < len(self.all_arms[arm].fixed)
            place = f"{where}fixed.{i}" if own else f"fixed.{i - len(self.all_arms[arm].fixed)}"
            if self.sampler.kind == "grid":
                yield Problem(place, "a grid tries every cell anyway; leave the fixed points out, or take tpe")
                return
            for path, value in point.items():
                if path not in space:
                    text = f"is not searched for {arm}. Accepted: {', '.join(space) or 'nothing'}."
                    yield Problem(f"{place}.{path}", text + did_you_mean(path, space), value)
                elif not contains(space[path], value):
                    yield Problem(f"{place}.{path}", f"is not among what is searched ({shown(space[path])})", value)

    def _problems_of_each(self, arm: str, where: str) -> Iterator[Problem]:
        """What is wrong with each searched path on its own."""
        for path, values in self.corners(arm).items():
            place = f"{where}search.{path}" if path in self.all_arms[arm].search else f"search.{path}"
            told = set()
            for value in values:
                for p in build_problems(*self._layers(arm), {path: value}):
                    text = p.message if p.path == path else f"{p.path}: {p.message}"
                    if text not in told:
                        told.add(text)
                        yield Problem(place, text, value if p.given is None else p.given)

    def _problems_together(self, arm: str, where: str) -> Iterator[Problem]:
        """The first combination of searched values, each fine on its own, that makes no experiment."""
        corners = self.corners(arm)
        if math.prod(len(values) for values in corners.values()) > COMBINATIONS:
            corners = {path: list(dict.fromkeys([values[0], values[-1]])) for path, values in corners.items()}
        for values in itertools.islice(itertools.product(*corners.values()), COMBINATIONS):
            point = dict(zip(corners, values, strict=True))
            if problems := build_problems(*self._layers(arm), point):
                at = ", ".join(f"{path}={value}" for path, value in point.items())
                hint = "What is searched for one kind only belongs into an arm of its own."
                yield Problem(f"{where}search", f"at {at}: {problems[0]} {hint}")
                return

    def _origin(self, arm: str, path: str) -> str:
        """Where in the file a path of an arm's experiment was written."""
        settings = self.all_arms[arm].settings
        given = any(path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.") for key in settings)
        return f"arms.{arm}.{path}" if given else f"experiment.{path}"


def build_problems(*mappings: Mapping[str, Any]) -> tuple[Problem, ...]:
    """What is wrong with an experiment of `mappings`; empty where nothing is."""
    try:
        Experiment.from_mapping(*mappings)
    except ConfigError as error:
        return error.problems
    return ()
