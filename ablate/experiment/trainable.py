"""What a sweep asks of an experiment, whatever trains it, and the registry of experiments that something else than
Ablate's own trainer runs: `experiment: {kind: command, ...}`.

A sweep varies the settings of an experiment, gives it seeds and reads its values. What has no meaning for a kind is
answered by None, and is left out of plan and report. Adding a kind is one class here and its `Driver`
(`ablate.training.external`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import model_validator

from ablate.config import merging
from ablate.config.base import Config, Kind, Names
from ablate.config.building import build, gather_problems
from ablate.config.errors import Problem
from ablate.config.merging import Tree, iterate_leaves
from ablate.config.registry import Registry
from ablate.config.yaml import dump_yaml

if TYPE_CHECKING:
    from typing_extensions import Self


class Trainable(Config):
    """An experiment as a sweep sees it: settings, a seed, and what is known of its runs before they begin."""

    if TYPE_CHECKING:  # fields of each kind, in an order of its own
        seed: int
        plugins: tuple[str, ...]

    is_own: ClassVar[bool] = False
    """Whether Ablate's own trainer runs it, so that its data, model, updates, memory and FLOPs are known."""
    imports_inputs: ClassVar[bool] = False
    """Whether its inputs are Python files that its runs import: a worker imports none that the command which began the
    sweep has not seen."""
    same: ClassVar[str] = "train the same model on the same data"
    """What sweeps have in common whose seeds must differ."""
    seeding: ClassVar[str] = "Let the seed reach whatever is random."
    """What to do where runs ignore their seed."""

    # ------------------------------------------------------------------ settings

    def check(self) -> Iterable[Problem]:
        """Return what is wrong with its fields together."""
        return ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if problems := [*self.check()]:
            raise gather_problems(problems, type(self).__name__)
        return self

    @classmethod
    def merge(cls, *mappings: Mapping[str, Any]) -> Tree:
        """Return nested or dotted mappings as one, later ones over earlier."""
        tree: Tree = {}
        for mapping in mappings:
            tree = merging.merge(cls, tree, mapping)
        return tree

    @classmethod
    def from_mapping(cls, *mappings: Mapping[str, Any], source: str = "the configuration") -> Self:
        """Return the experiment of nested or dotted mappings, later ones over earlier. Raises ConfigError with all
        problems."""
        for mapping in mappings:
            if not isinstance(mapping, Mapping):
                text = "give a mapping, such as {'norm': 'mix', 'optimizer.lr': 3e-3}; Experiment.load reads a file"
                raise TypeError(f"{text}, not a {type(mapping).__name__}")
        built: Self = build(cls, *mappings, source=source)
        return built

    def to_tree(self) -> Tree:
        """Return the resolved configuration as plain nested mappings; `from_mapping` returns the same experiment."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Return the resolved configuration as YAML."""
        return dump_yaml(self.to_tree())

    def flat(self) -> dict[str, Any]:
        """Return the resolved configuration as {dotted path: value}."""
        return dict(iterate_leaves(self.to_tree()))

    def describe_parts(self) -> dict[str, str]:
        """Return path -> text of the parts that are compared between arms as a whole."""
        return {}

    def identify(self) -> dict[str, Any]:
        """Return path -> value of the settings by which sweeps are told to train the same: their seeds must differ."""
        return self.flat()

    @classmethod
    def pick_factor(cls, differing: Iterable[str]) -> tuple[str, ...]:
        """Return the compared factor if the file names none and arms differ in these paths; () if it is not clear."""
        paths = sorted(differing)
        whole = tuple(paths[:1])  # of an object beside null: all others are within
        return whole if all(path == whole[0] or path.startswith(f"{whole[0]}.") for path in paths) else ()

    @classmethod
    def describe_factors(cls) -> str:
        """Return what `pick_factor` looks for, in words."""
        return "the file names none"

    def list_references(self) -> dict[str, str]:
        """Return dotted path -> the model of another run that is named there."""
        return {}

    def identify_model(self) -> str | None:
        """Return a text that only experiments with the same model have; None: it is not known."""
        return None

    # ------------------------------------------------------------------ runs

    def describe_runs(self) -> list[str]:
        """Return sentences of a report on how its runs were made and what is not certain of them."""
        return []

    def list_cautions(self) -> list[str]:
        """Return sentences on what may be a mistake, which a plan shows, and a run when it begins."""
        return []

    @property
    def procedure(self) -> str:
        """What runs it: training, alignment, or a kind of the registry."""
        raise NotImplementedError

    @property
    def task_name(self) -> str:
        """The task that a model is trained for; '' if it is not known."""
        return ""

    @property
    def metrics(self) -> list[str] | None:
        """The metrics of a validation, besides scores on downstream tasks; None: known once it has run."""
        return None

    @property
    def length(self) -> int | None:
        """The last step of a run; None: it is not known."""
        return None

    @property
    def warmup(self) -> int:
        """The steps of a warm-up, after which a pruner may stop a run."""
        return 0

    @property
    def unit(self) -> str:
        """The unit of its items."""
        return "steps"

    @property
    def items_per_update(self) -> int:
        """Items of one step."""
        return 1

    @property
    def items(self) -> int | None:
        """Items of the whole run; None: it is not known."""
        return None if self.length is None else self.length * self.items_per_update

    @property
    def trivial_value(self) -> float | None:
        """The objective of a run that has learned nothing, as the file has it; None: it does not say."""
        return None

    @property
    def time_limit_seconds(self) -> float | None:
        """The most seconds of a run; None: it is not known."""
        return None

    @property
    def resumes(self) -> bool:
        """Whether a stopped run goes on from a checkpoint; otherwise it starts from the beginning."""
        return False

    @property
    def copied_to(self) -> str | None:
        """The address to which the checkpoint of an arm's best run is copied."""
        return None

    def describe_length(self) -> str:
        """Return how long a run is, in words; '' if it is not known."""
        return "" if self.length is None else f"{self.length:,} {self.unit}"

    def count_own_samples(self) -> int | None:
        """Return the validation samples that it chooses by itself; None if it is told, or has no such choice."""
        return None

    def with_samples(self, count: int) -> Self:
        """Return it with so many validation samples, where it would choose their number by itself."""
        return self


class ExternalExperiment(Trainable, Kind):
    """An experiment that something else than Ablate's trainer runs: a kind of `experiments`."""

    driver: ClassVar[str]
    """The module whose `DRIVER` checks and runs it (`ablate.training.external.Driver`)."""

    @property
    def procedure(self) -> str:
        return self.kind

    @property
    def program(self) -> str:
        """What its runs run, in a few words."""
        return self.kind


class SettingsExperiment(ExternalExperiment):
    """One whose `settings` have names of their own, which stand beside its fields: arms and the search give
    `optimizer.lr`, and not `settings.optimizer.lr`."""

    if TYPE_CHECKING:  # fields of each kind, with a meaning of its own
        settings: dict[str, Any]
        steps: int | None

    trivial: float | None = None
    """The metric of a run that has learned nothing, such as the loss of a guess: a run that ends no better is stuck,
    which counts as a failure. None: only divergence is a failure."""
    plugins: Names = ()
    """Your own Python files, relative to the current directory, which register further kinds."""

    @classmethod
    def merge(cls, *mappings: Mapping[str, Any]) -> Tree:
        return super().merge(*map(_unfold, mappings))

    @classmethod
    def from_mapping(cls, *mappings: Mapping[str, Any], source: str = "the configuration") -> Self:
        return super().from_mapping(*map(_unfold, mappings), source=source)

    @model_validator(mode="before")
    @classmethod
    def _gather_settings(cls, data: Any) -> Any:
        """Collect the settings, which stand beside the fields once layers are merged."""
        if not isinstance(data, Mapping):
            return data
        unfolded = _unfold(data)
        own = {key: value for key, value in unfolded.items() if key in cls.model_fields}
        return {**own, "settings": {key: value for key, value in unfolded.items() if key not in cls.model_fields}}

    @property
    def values(self) -> dict[str, Any]:
        """Dotted name -> value of its settings."""
        return dict(iterate_leaves(self.settings))

    @property
    def length(self) -> int | None:
        return self.steps

    @property
    def trivial_value(self) -> float | None:
        return self.trivial

    def to_tree(self) -> Tree:
        """Return the resolved configuration as plain mappings, the settings beside the fields."""
        tree = self.model_dump(mode="json")
        settings = tree.pop("settings")
        return {**tree, **settings}


experiments: Registry[ExternalExperiment] = Registry("experiment", ExternalExperiment)


def _unfold(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer of settings with those below `settings` beside the fields, as arms and the search have them."""
    inside = mapping.get("settings")
    own = {key.removeprefix("settings."): value for key, value in mapping.items() if key != "settings"}
    return {**(inside if isinstance(inside, Mapping) else {}), **own}
