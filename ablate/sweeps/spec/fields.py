"""The fields of a sweep, and the experiments and numbers derived from them. `Sweep` adds reading and checking."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from ablate.config import plugins
from ablate.config.base import Config, Names
from ablate.config.bounds import MOST_TRIALS
from ablate.config.errors import ConfigError
from ablate.config.merging import Tree
from ablate.config.yaml import dump_yaml
from ablate.experiment.trainable import Trainable
from ablate.experiment.tree import Experiment, build_experiment, find_class, require_own
from ablate.plots.style import Looks, choose_looks
from ablate.sweeps.search.axes import Axis
from ablate.sweeps.search.methods import (
    PrunerConfig,
    Rung,
    SamplerConfig,
    SearchMethod,
    choose_plain_sampler,
    describe_with_method,
    methods,
    move_method,
    pruners,
    samplers,
)
from ablate.sweeps.search.space import Choice, Entry, Range, Space, count_points, list_cells
from ablate.sweeps.spec.design import (
    Cell,
    Components,
    Design,
    DesignKind,
    build_design,
    check_components,
    list_grid,
    list_paths,
)
from ablate.sweeps.spec.parts import (
    MOST_SEEDS,
    Arm,
    Budget,
    ChallengeFields,
    Compare,
    Confirm,
    Division,
    Objective,
    Point,
    Published,
    Scale,
    Spent,
    TakenOver,
)
from ablate.verdict.effects import Contrast, contrast_pair
from ablate.verdict.sequential import LEAST

if TYPE_CHECKING:
    from typing_extensions import Self

DEFAULT_TRIALS = 10
MOST_CORNERS = 64  # of a search of batches, lengths and data that are looked at for the number of validation samples
MOST_LETTERS = 200  # of the name of an arm: those of studies, which it is a part of, are stored in 512
ONLY_ARM = "all"  # the arm of a sweep that names none


def describe_kinds(schema: dict[str, Any]) -> None:
    """Let the JSON schema of `experiment` name the kinds of the registry, beside settings of Ablate's own trainer."""
    schema["anyOf"] = [{key: schema.pop(key) for key in ("type", "additionalProperties")}, {"registry": "experiment"}]


class SweepFields(Config):
    """The fields of `Sweep`, without checks between them."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)
    """Name of the sweep, its studies and its MLflow experiment."""
    plugins: Names = ()
    """Your own Python files, relative to the current directory, which register further kinds."""
    experiment: dict[str, Any] = Field({}, json_schema_extra=describe_kinds)
    """The base experiment: the settings that the arms share. Without a `kind` Ablate trains one of its own models; a
    kind, such as command, is run by something else."""
    arms: dict[str, Arm] = {}
    """Name -> settings. Without arms the sweep has one arm."""
    components: Components | None = None
    """Component -> its levels, the first of which is the reference: `norm: [pre, lns]`. They make the arms, instead of
    `arms`."""
    design: DesignKind | None = None
    """Which arms the components make. one-at-a-time: the first levels, and each change of one of them; leave-one-out:
    the last levels (of two each), and each of them back at its first; factorial: every combination, at most 64, whose
    main effects and interactions of each two components are compared; main-effects: the same arms without the
    interactions."""
    within: str | None = None
    """For a factorial: the component at each of whose levels the effects of the others are compared, instead of their
    means over its levels: what makes one placement fail need not make another fail."""
    search: dict[str, Entry] = Field({}, json_schema_extra=describe_with_method)
    """Dotted path -> range or list of values, searched for every arm separately; and `method` with its fields."""
    method: Annotated[SearchMethod, methods] = Field("trials", validate_default=True)
    """How the settings of an arm are compared. It stands in `search`, beside what is searched: `search: {method: rungs,
    keep: 0.33, optimizer.lr: [...]}`."""
    settings_from: str | None = None
    """A finished sweep of the same storage with the same arms, as NAME or NAME@GENERATION: each arm takes over the
    settings that it chose, and is tested on fresh seeds without a search."""
    taken_over: SkipJsonSchema[TakenOver | None] = None
    """The settings that `settings_from` found; set when the sweep begins, not for a file."""
    spent: SkipJsonSchema[Spent | None] = None
    """The seeds that the storage has spent on the same model and data; set when the sweep begins, not for a file."""
    objective: Objective = Objective()
    """The metric that is compared."""
    budget: Budget = Budget()
    """The budget of each arm's search."""
    sampler: Annotated[SamplerConfig, samplers] = Field("gp", validate_default=True)
    """The rule for choosing the next trial."""
    pruner: Annotated[PrunerConfig, pruners] = Field("none", validate_default=True)
    """The rule for stopping a trial early."""

    fixed: list[Point] = []
    """Points that the search of every arm starts from, such as published settings; parameters that a point omits are
    drawn."""
    confirm: Confirm = Confirm()
    """How the settings of each arm are chosen and tested on fresh seeds."""
    challenge: ChallengeFields = ChallengeFields()
    """How far an arm is tuned before it is told that it lost."""
    compare: Compare = Compare()
    """At which cost of training the arms are compared."""
    target: float | None = None
    """A value of the objective: for each arm it is compared with the baseline how soon it reaches it, in tokens (or
    images), FLOPs and seconds. That it does so sooner is one more comparison of each arm, which shares the error. None:
    only how soon arms reach the final objective of the baseline, which follows from the verdict."""
    baseline: str | None = None
    """The arm that the others are compared with once they are confirmed. None: the first."""
    factor: Names = ()
    """The compared factor: the paths, or their first parts, in which arms are meant to differ. Default: the settings of
    the components; without components the first of placement, norm layer, initialisation, attention, warm start and
    parametrisation in which arms differ."""
    confounds: Names = ()
    """Further paths or parts in which arms differ on purpose. Any other difference is refused; these are reported."""
    published: list[Published] = []
    """Results of papers, shown next to this sweep's."""
    scale: SkipJsonSchema[Scale | None] = None
    """The full setting, if `--scale` made this a smaller one; not for a file."""
    family: SkipJsonSchema[int | None] = Field(None, ge=0, le=MOST_TRIALS)
    """Number of comparisons of the other sizes or stages of the same file; set when the file is read, since all
    comparisons of a file share one error of 5 %."""
    sizes: dict[str, Division] = Field({}, exclude=True)
    """Name -> size: each is a separate sweep, called NAME-SIZE. Loading a file returns these sweeps."""
    stages: dict[str, Division] = Field({}, exclude=True)
    """Name -> stage: each is a separate sweep, called NAME-STAGE, and they run one after another; the arms of a stage
    start from those of an earlier stage by warm_start.from: sweep:NAME-STAGE/ARM."""
    checkpoints: Literal["best", "all", "none"] = "best"
    """Which finished trials keep their checkpoint: the best of each arm (once it is chosen, the one that is tested) and
    the best of its fresh seeds, all, or none."""

    _stored_hashes: frozenset[str] | None = PrivateAttr(None)
    """For a sweep that was read from a storage: the SHA-256 of the plugins of its trials."""

    @model_validator(mode="before")
    @classmethod
    def _read_method(cls, data: Any) -> Any:
        """Take the method out of `search`. With rungs, which need one that does not learn, the sampler is by default
        the grid, or else random."""
        if not isinstance(data, Mapping):
            return data
        data = move_method(data)
        method = methods.kind_of(data.get("method") or {})
        if (
            method
            and method.staged
            and not data.get("sampler")
            and isinstance(space := data.get("search") or {}, Mapping)
        ):
            data["sampler"] = choose_plain_sampler(space)
        return data

    @model_validator(mode="after")
    def _check_baseline(self) -> Self:
        if self.baseline is not None and self.baseline not in self.own_arms:
            raise ValueError(f"baseline is not an arm, given {self.baseline!r}. Accepted: {', '.join(self.own_arms)}")
        return self

    @field_validator("arms")
    @classmethod
    def _check_names(cls, arms: dict[str, Arm]) -> dict[str, Arm]:
        def fits(name: str) -> bool:
            is_whole = bool(name.strip()) and len(name) <= MOST_LETTERS
            return is_whole and name.isprintable() and not {"/", "@"} & {*name}

        if bad := [name for name in arms if not fits(name)]:
            text = f"must have 1 to {MOST_LETTERS} printable characters, not only blanks, and no / or @"
            raise ValueError(f"the name of an arm {text}, given {', '.join(map(repr, bad))}")
        return arms

    def mark_stored(self, hashes: Iterable[str]) -> Self:
        """Return this sweep marked as read from a storage: of its plugins, only those with the SHA-256 `hashes` and
        those that the user names are run."""
        marked = self.model_copy()
        marked._stored_hashes = frozenset(hashes)
        return marked

    def to_tree(self) -> Tree:
        """Return the sweep as plain nested mappings."""
        return self.model_dump(mode="json", exclude_none=True)

    def to_yaml(self) -> str:
        """Return the sweep as YAML."""
        return dump_yaml(self.to_tree())

    @cached_property
    def task(self) -> str:
        """The task that its models are trained for; '' where its experiments cannot be built (a plugin is missing)."""
        try:
            return self.base(next(iter(self.all_arms))).task_name
        except ConfigError:
            return ""

    @property
    def own_arms(self) -> dict[str, Arm]:
        """The arms of the file, or those that its components make; one named "all" where it has neither."""
        return self.arms or (self.designed.arms if self.designed else {ONLY_ARM: Arm()})

    @cached_property
    def designed(self) -> Design | None:
        """The arms and contrasts of the components; None without components, and if they make no arms."""
        components, kind = self.components, self.design
        if components is None or kind is None or any(check_components(components, kind, self.within)):
            return None
        return build_design(components, kind, self.within)

    @property
    def contrasts(self) -> dict[str, Contrast]:
        """The effects that a factorial compares, by name; empty if arms are compared with a baseline."""
        return self.designed.contrasts if self.designed and not self.arms else {}

    @property
    def comparisons(self) -> tuple[Contrast, ...]:
        """All comparisons that this sweep makes, besides those of the rest of its file: effects of a factorial, or
        arms with their baselines."""
        pairs = ((arm, base) for arm, base in self.baselines.items() if base not in ("", arm))
        return tuple(self.contrasts.values()) or tuple(contrast_pair(arm, base) for arm, base in pairs)

    @property
    def compared_paths(self) -> tuple[str, ...]:
        """The factor that the file names, or what its components set; empty if it has neither."""
        return self.factor or (list_paths(self.components or {}) if self.designed else ())

    @property
    def all_arms(self) -> dict[str, Arm]:
        """The arms that are run: those of the file or, with `confirm.at: grid`, each of them at each point of its grid,
        without a search."""
        if not self.at_grid:
            return self.own_arms
        own = self.own_arms
        return {name: own[cell.arm].model_copy(update={"search": {}}) for name, cell in self.cells.items()}

    @property
    def at_grid(self) -> bool:
        """Whether every point of a grid is tested, without a search."""
        return self.confirm.at == "grid"

    @property
    def tested(self) -> str:
        """The tested settings of each arm, in words, and the equal cost at which it is compared."""
        told = "at its chosen settings"
        if self.at_grid:
            told = "at each point of its grid" if any(cell.point for cell in self.cells.values()) else "as it stands"
        return f"{told}, {self.equal_cost}" if self.equal_cost else told

    @property
    def equal_cost(self) -> str:
        """'at equal FLOPs', as `compare.at` has it; '' at the end of each run."""
        at = self.compare.at
        if at == "end":
            return ""
        if at == "tokens":
            with contextlib.suppress(ConfigError):  # a plugin is missing
                return f"at equal {self.base(next(iter(self.all_arms))).unit}"
        return f"at equal {'FLOPs' if at == 'flops' else at}"

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """With `confirm.at: grid`, the name of each arm of `all_arms` -> its cell; otherwise empty."""
        return list_grid(self.own_arms, self.search, self.compared_with) if self.at_grid else {}

    @cached_property
    def looks(self) -> Looks:
        """Colour and marker of each of `all_arms`; an arm of the file looks the same at every point of its grid."""
        own = choose_looks(self.own_arms)
        return {arm: own[self.cells[arm].arm if self.cells else arm] for arm in self.all_arms}

    def without_grid(self) -> Self:
        """Return the sweep with the arms of its file, which search the grid whose points it tests."""
        return (
            self.model_copy(update={"confirm": self.confirm.model_copy(update={"at": "best"})})
            if self.at_grid
            else self
        )

    def space(self, arm: str) -> Space:
        """Return the search space of `arm`; empty for an arm at a point of a grid."""
        if self.at_grid:
            return {}
        return {**self.search, **self.all_arms[arm].search}

    @property
    def is_own(self) -> bool:
        """Whether Ablate's own trainer runs its experiments, so that data, updates, memory and FLOPs are known."""
        return self.experiment.get("kind") is None

    @cached_property
    def kind(self) -> type[Trainable]:
        """The class of its experiments. Raises ConfigError for an unknown kind."""
        return find_class(self.experiment)

    def start(self, arm: str) -> dict[str, Choice]:
        """Return a value of each searched setting without which the experiment of `arm` would not be whole: settings of
        another kind than Ablate's own have no defaults."""
        if self.is_own:
            return {}
        return {path: values[0] for path, values in self.corners(arm).items()}

    def own_base(self, arm: str) -> Experiment:
        """Return the experiment of `arm` at the first values of its search space. Raises ConfigError if something else
        than Ablate's own trainer runs it."""
        return require_own(self.base(arm))

    def base(self, arm: str) -> Trainable:
        """Return the experiment of `arm` at the first values of its search space."""
        if arm not in self._bases:
            self._bases[arm] = self.at(arm, {path: values[0] for path, values in self.corners(arm).items()})
        return self._bases[arm]

    @cached_property
    def _bases(self) -> dict[str, Trainable]:
        """Cache of built experiments: building one takes milliseconds, and each trial needs all of them."""
        return {}

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy, as for every configuration; the copy has its own cached experiments."""
        copied = super().model_copy(update=update, deep=deep)
        for known in ("_axes", "_bases", "_last_tuned_seed", "_val_samples", "cells", "designed", "kind"):
            copied.__dict__.pop(known, None)
        return copied

    def at(self, arm: str, params: Mapping[str, Any]) -> Trainable:
        """Return the experiment of `arm` at the point `params` of its search space. Raises ConfigError if a stored
        sweep names a plugin that may not be run (see `plugins.restrict`)."""
        experiment = self._build(arm, params)
        return experiment if self._val_samples is None else experiment.with_samples(self._val_samples)

    def _build(self, arm: str, params: Mapping[str, Any]) -> Trainable:
        """Return the experiment of `arm` at `params`, with the number of validation samples of its own."""
        known = self._stored_hashes
        source = f"the stored sweep {self.name}"
        with contextlib.nullcontext() if known is None else plugins.restrict(known.__contains__, source):
            return build_experiment(*self.layers(arm), params)

    @cached_property
    def _val_samples(self) -> int | None:
        """Return the default number of validation samples of all trials: the smallest trial's number, so that all are
        compared on the same samples. None if the data sets it."""
        counts = []
        for arm in self.all_arms:
            corners = {path: v for path, v in self.corners(arm).items() if path.startswith(("trainer.", "data."))}
            for values in itertools.islice(itertools.product(*corners.values()), MOST_CORNERS):
                point = dict(zip(corners, values, strict=True))
                with contextlib.suppress(ConfigError):  # invalid experiments are reported separately
                    if (samples := self._build(arm, point).count_own_samples()) is not None:
                        counts.append(samples)
        return min(counts, default=None)

    @property
    def compared_with(self) -> str:
        """The arm of the file that the others are compared with."""
        return self.baseline or next(iter(self.own_arms))

    @property
    def baselines(self) -> dict[str, str]:
        """Each of `all_arms` -> the one that it is compared with: the baseline, at the same point of a grid. A cell of
        a factorial -> itself, as contrasts of cells are compared."""
        if self.contrasts:
            return {name: name for name in self.all_arms}
        if self.at_grid:
            return {name: cell.baseline for name, cell in self.cells.items()}
        return dict.fromkeys(self.all_arms, self.compared_with)

    def count_shared(self) -> int:
        """Return the comparisons of this sweep that share an error of 5 %: none with fewer than three fresh seeds."""
        return len(self.comparisons) + self.count_timed() if self.confirm.most_seeds >= LEAST else 0

    def count_timed(self) -> int:
        """Return the comparisons of how soon arms reach the target."""
        return 0 if self.target is None else len(self.comparisons)

    def share_with(self: Self, others: int | None) -> Self:
        """Return the sweep, whose comparisons share their error with at least so many of other sizes or stages."""
        return self.model_copy(update={"family": max(self.family or 0, others or 0) or None})

    def find_arm(self, name: str) -> str:
        """Return the arm that a study of this sweep belongs to: in a grid each has one of its cells."""
        return self.cells[name].arm if self.at_grid else name

    def fresh_seeds(self, count: int | None = None) -> list[int]:
        """Return the seeds on which chosen settings are tested: `count` of them, or all possible ones."""
        first = self.first_seed
        return list(range(first, first + (self.confirm.most_seeds if count is None else count)))

    def selection_seeds(self, count: int | None = None) -> list[int]:
        """Return the seeds on which candidates are compared, above all possible fresh seeds: `count` of them, or those
        that every candidate has."""
        first = self.first_seed + MOST_SEEDS
        return list(range(first, first + (self.confirm.selection_seeds if count is None else count)))

    @property
    def first_seed(self) -> int:
        """The first fresh seed, above all seeds that any arm is tuned on and those that earlier sweeps have spent."""
        return max(self._last_tuned_seed, self.spent.last if self.spent else 0) + 1

    @property
    def last_seed(self) -> int:
        """The last seed that it may ever test or select on: those from `first_seed` on are its own."""
        return self.first_seed + 2 * MOST_SEEDS - 1

    def choosing_seeds(self, arm: str) -> list[int]:
        """Return the seeds on which the settings of an arm are compared: that of its search, and the selection seeds
        that every candidate has."""
        return [self.base(arm).seed, *self.selection_seeds()]

    def axes(self, arm: str) -> dict[str, Axis]:
        """Return path -> axis of the searched parameters of `arm` that are numbers."""
        if arm not in self._axes:
            space, layers, start = self.space(arm), self.layers(arm), self.start(arm)
            points = round(self.trials(arm) ** (1 / len(space))) if space else 0
            found = {path: axis for path, entry in space.items() if (axis := Axis.of(entry, points))}

            def is_accepted(path: str, value: Any) -> bool:
                low, high = self.challenge.bound.get(path, (None, None))
                if (low is not None and value < low) or (high is not None and value > high):
                    return False
                try:
                    build_experiment(*layers, start, {path: value})
                except ConfigError:
                    return False
                return True

            extend = self.challenge.extend
            self._axes[arm] = {path: axis.extend(extend, partial(is_accepted, path)) for path, axis in found.items()}
        return self._axes[arm]

    @cached_property
    def _axes(self) -> dict[str, dict[str, Axis]]:
        """Cache of axes: those of an arm need several experiments to be built."""
        return {}

    def count_candidates(self, arm: str) -> int:
        """Return the maximum number of settings of `arm` that are compared on selection seeds; 0: none are."""
        confirm = self.confirm
        most = self.method.count_candidates(self.trials(arm))
        count = confirm.candidates if most is None else min(confirm.candidates, most)
        return count if confirm.most_seeds and count > 1 and self.space(arm) else 0

    @cached_property
    def _last_tuned_seed(self) -> int:
        """Return the largest seed that any arm is tuned on."""
        tuned = [self.base(arm).seed for arm in self.all_arms]
        tuned += [int(v) for arm in self.all_arms for v in self.corners(arm).get("seed", []) if isinstance(v, int)]
        return max(tuned)

    @property
    def plugin_files(self) -> tuple[str, ...]:
        """Return the plugins of the sweep, of its base experiment and of all arms."""
        layers = [layer for arm in self.all_arms for layer in self.layers(arm)]
        return tuple(plugins.merge_plugins(*(layer.get("plugins") for layer in layers)))

    def layers(self, arm: str) -> tuple[Mapping[str, Any], ...]:
        """Return the settings that the experiments of `arm` share, later over earlier."""
        shared = {"plugins": self.plugins}, self.experiment
        if self.at_grid:
            cell = self.cells[arm]
            return *shared, self.own_arms[cell.arm].settings, cell.point
        return *shared, self.own_arms[arm].settings

    def trials(self, arm: str) -> int:
        """Return the number of finished trials that `arm` may have: the budget, or every point of a smaller space, as
        each is trained once."""
        if self.at_grid:
            return 0
        wanted, points = self.budget.trials, self.count_points(arm)
        if self.sampler.kind != "grid":
            wanted = wanted or DEFAULT_TRIALS
        if points is None:
            return wanted or DEFAULT_TRIALS
        return min(wanted or points, points)

    def count_points(self, arm: str) -> int | None:
        """Return the number of points of the search of `arm`; None if it has a continuous range, and for a sampler
        other than the grid without a search."""
        space = self.space(arm)
        if self.sampler.kind == "grid":
            return len(list_cells(space))
        return count_points(space) if space else None

    def plan_rungs(self, arm: str) -> Sequence[Rung]:
        """Return the rungs of the search of `arm`; none where each trial is one run."""
        if self.at_grid or not self.method.staged:
            return ()
        return self.method.plan_rungs(self.trials(arm) or 0, self.own_base(arm))

    def find_share(self, arm: str) -> float:
        """Return the tokens that the search of `arm` takes, as a share of those of training its trials to the end."""
        if self.at_grid or not self.method.staged:
            return 1.0
        return self.method.find_share(self.trials(arm) or 0, self.own_base(arm))

    def list_points(self, arm: str) -> list[dict[str, Choice]]:
        """Return the first values of everything that `arm` searches, and that point with each other value or end."""
        corners = self.corners(arm)
        first = {path: values[0] for path, values in corners.items()}
        return [first, *({**first, path: value} for path, values in corners.items() for value in values[1:])]

    def corners(self, arm: str) -> dict[str, list[Choice]]:
        """Return dotted path -> the ends of its range, or all of its values, for everything that `arm` searches."""
        return {path: e.ends() if isinstance(e, Range) else list(e) for path, e in self.space(arm).items()}


def count_others(specs: Sequence[SweepFields]) -> list[int]:
    """Return for each of `specs` the comparisons of the others, with which its own share an error of 5 %."""
    counts = [spec.count_shared() for spec in specs]
    return [sum(counts) - own for own in counts]
