"""The parts of a sweep file: arms, objective, budget, confirmation, published figures, sizes, stages, scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from ablate.config.base import Config
from ablate.config.bounds import MOST_SEED, MOST_TRIALS
from ablate.config.formatting import format_settings, join_first, shorten_paths
from ablate.experiment.metrics import describe_metric, parse_metric, shorten_metric
from ablate.sweeps.search.space import Choice, Entry

if TYPE_CHECKING:
    from typing_extensions import Self

MOST_SEEDS = 1000

Point = dict[str, Choice]
"""Dotted path -> value, for some or all searched parameters."""


class _Settings(Config):
    """Settings that override the base experiment; in YAML they are on the same level as the other keys."""

    beside: ClassVar[tuple[str, ...]]
    """The keys in YAML that are not settings."""

    settings: dict[str, Any] = {}
    """Dotted path -> value."""

    @model_validator(mode="before")
    @classmethod
    def _gather_settings(cls, data: Any) -> Any:
        """Collect the settings; a part without settings may be empty."""
        if data is None:
            return {}
        if isinstance(data, Mapping) and "settings" not in data:
            own = {key: data[key] for key in cls.beside if key in cls.model_fields and data.get(key) is not None}
            return {**own, "settings": {k: v for k, v in data.items() if k not in cls.beside}}
        return data

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        described = handler.resolve_ref_schema(handler(schema))
        return {
            "type": "object",
            "description": described.get("description", ""),
            "properties": {key: described["properties"][key] for key in cls.beside},
            "additionalProperties": True,
        }

    @model_serializer(mode="wrap")
    def _write_settings(self, handler: Any) -> dict[str, Any]:
        dumped = handler(self)
        return {**dumped["settings"], **{key: dumped[key] for key in self.beside if dumped[key]}}


class Arm(_Settings):
    """One level of the compared factor: settings that override the base experiment, and its own search space."""

    beside = ("search",)

    search: dict[str, Entry] = {}
    """Dotted path -> range or list of values, in addition to those that all arms search."""


MetricName = Annotated[str, AfterValidator(parse_metric)]
"""A metric, or mean(A, B, ...)."""


class Objective(Config):
    """The compared metric, of the last validation."""

    metric: MetricName = "val/loss"
    """Its name; left out, as the task has it (`ablate list tasks`), for most val/loss. Others: val/perplexity,
    val/bits_per_byte, val/accuracy; val/NAME/loss and so on of a further set; eval/TASK/acc and so on of a downstream
    task in evaluation.tasks; of an alignment align/accuracy, align/margin, align/reward, align/win_rate or align/kl.
    mean(A, B, ...) is the arithmetic mean of several, all of which are better in the same direction."""
    direction: Literal["minimize", "maximize"] = "minimize"
    """Whether a lower or a higher value is better. Default: the metric's own direction, higher for an accuracy, lower
    for a loss."""

    @model_validator(mode="before")
    @classmethod
    def _follow_metric(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or data.get("direction") is not None:
            return data
        known = describe_metric(metric) if isinstance(metric := data.get("metric"), str) else None
        return {**data, "direction": "maximize"} if known and known.maximize else data

    @property
    def title(self) -> str:
        """The metric's name in tables, figures and sentences."""
        return shorten_metric(self.metric)

    @property
    def is_directed(self) -> bool:
        """Whether its direction was given, or follows from the metric."""
        return "direction" in self.model_fields_set


class Budget(Config):
    """How much each arm's search may train."""

    trials: int | None = Field(None, gt=0, le=MOST_TRIALS)
    """Finished trials (completed, diverged or pruned): a target, so that running again continues. None: every cell of a
    grid, otherwise 10."""


class SeedRange(Config):
    """Seeds that are added until every comparison is decided."""

    min: int = Field(ge=3)
    """Seeds of the first look."""
    max: int = Field(le=MOST_SEEDS)
    """Maximum number of seeds, even if undecided."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min is above max, given {self.min} and {self.max}")
        return self


def _parse_seeds(value: Any) -> int | SeedRange:
    if isinstance(value, (SeedRange, Mapping)):
        return value if isinstance(value, SeedRange) else SeedRange.model_validate(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_SEEDS:
        return value
    raise PydanticCustomError("seeds", f"must be a whole number from 0 to {MOST_SEEDS}, or such as {{min: 3, max: 12}}")


Seeds = Annotated[
    int | SeedRange,
    PlainValidator(_parse_seeds, json_schema_input_type=Annotated[int, Field(ge=0, le=MOST_SEEDS)] | SeedRange),
    PlainSerializer(lambda seeds: seeds if isinstance(seeds, int) else seeds.model_dump(mode="json"), return_type=Any),
]


class Confirm(Config):
    """How the best settings of each arm are chosen and tested: the best result of a search is optimistic."""

    at: Literal["best", "grid"] = "best"
    """The tested settings. best: the chosen settings of each arm. grid: every arm at every point of its grid, or as
    it stands where nothing is searched, without a choice (needs `sampler: grid`)."""
    seeds: Seeds = 0
    """Fresh seeds on which the chosen settings are tested, the same for every arm: a number, or {min: 3, max: 12} for
    as many as the verdict needs (needs `effect`). 0: none; 2 give figures but no verdict."""
    candidates: int = Field(3, ge=1, le=MOST_TRIALS)
    """Number of best settings of each arm's search that are compared on selection seeds before one is tested. 1: the
    best is tested without comparison."""
    selection_seeds: int = Field(2, ge=1, le=MOST_SEEDS // 2)
    """Number of seeds on which the candidates are compared, the same for every arm, used neither for tuning nor for
    testing. Candidates within their noise are compared on up to twice as many."""
    effect: float | None = Field(None, gt=0)
    """The smallest difference of the objective that matters: arms are called equivalent if the interval of their
    difference lies within it, and plans say whether the seeds can detect it. None: no arms are called equivalent."""
    sd: float | None = Field(None, gt=0)
    """The standard deviation, over seeds, of the difference of two arms, from a pilot study or a source: plans use it
    to compute the statistical power, with `--scale` only if the command line sets it."""
    sd_source: str | None = None
    """The source of `sd`."""

    @property
    def most_selection_seeds(self) -> int:
        """Seeds on which candidates are compared at most, while they are within their noise."""
        return 2 * self.selection_seeds

    @property
    def first_seeds(self) -> int:
        """Seeds of the first look."""
        return self.seeds if isinstance(self.seeds, int) else self.seeds.min

    @property
    def most_seeds(self) -> int:
        """Seeds of the last planned look."""
        return self.seeds if isinstance(self.seeds, int) else self.seeds.max

    @property
    def is_sequential(self) -> bool:
        """Whether seeds are added until every comparison is decided."""
        return isinstance(self.seeds, SeedRange)


Bound = Annotated[
    tuple[float | None, float | None],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
"""The lowest and the highest value; None: no such limit."""


class ChallengeFields(Config):
    """How far an arm is tuned before it is told that it lost."""

    trials: int = Field(6, ge=0, le=MOST_TRIALS)
    """Further settings that an arm may try, at most, before a comparison says that it lost, each on the seed of the
    search and on the selection seeds. 0: none, so that the verdict holds at the chosen settings alone. A sweep that was
    begun goes on with a larger number."""
    extend: int = Field(2, ge=0, le=10)
    """Steps by which a searched range is extended, for all arms, while some arm is best at its end."""
    bound: dict[str, Bound] = {}
    """Dotted path of a searched parameter -> its lowest and its highest value, beyond which no range is extended; null:
    no such limit. An arm that is best at a bound is tuned."""


class Compare(Config):
    """At which cost of training the arms are compared."""

    at: Literal["end", "tokens", "flops", "seconds"] = "end"
    """end: each arm at the end of its training. tokens (or images), flops, seconds: all at equal cost, the largest that
    every run on fresh seeds has reached; arms that train beyond it are read there on their curve of validations,
    interpolated, before their schedule has ended. flops include those of models that an arm starts from. seconds are
    those of updates, without validation and without the first one, which compiles; they need runs that trained alone on
    the same hardware (one worker)."""


class Published(Config):
    """Results of a paper, shown next to this sweep's and never mixed with them."""

    source: str
    """Their source: paper and table."""
    size: str | None = None
    """The size that they belong to, in a file with sizes. None: all sizes."""
    metric: MetricName = "val/loss"
    """The metric that they are shown with, such as mean(val/perplexity, val/wiki/perplexity): one that runs of the arms
    report, or a score eval/TASK/NAME, which `ablate evaluate` may measure later."""
    tokenizer: str | None = None
    """The tokenizer of the published results, as a value of `data.tokenizer`: perplexities and losses with different
    tokenizers cannot be compared, and the report says so."""
    values: dict[str, float] = Field(min_length=1)
    """Arm -> value."""


class TakenOver(Config):
    """The settings of the arms that another sweep chose; written when a sweep with `settings_from` begins."""

    sweep: str
    """Name of that sweep, with its generation."""
    settings: dict[str, dict[str, Choice]]
    """Arm -> dotted path -> value."""
    seeds: list[int]
    """The seeds on which they were chosen; no arm is tested on one of them."""

    def describe(self) -> str:
        """Return the sentence on it in plans and reports."""
        names = shorten_paths(path for settings in self.settings.values() for path in settings)
        told = ", ".join(f"{arm} {format_settings(settings, names)}".strip() for arm, settings in self.settings.items())
        return f"Nothing was tuned here: each arm has the settings that {self.sweep} chose for it ({told})."


class Spent(Config):
    """The seeds that earlier sweeps of a storage keep for themselves, which train the same model on the same data;
    written when a sweep begins."""

    last: int = Field(ge=0, le=MOST_SEED)
    """The largest of these seeds: those of the test begin above it."""
    sweeps: list[str]
    """Names of these sweeps, with their generations, the latest last."""
    same: str = "train the same model on the same data"
    """What they have in common with this one."""

    def describe(self) -> str:
        """Return the sentence on it in plans and reports."""
        names, (verb, _, rest) = join_first(self.sweeps, 5), self.same.partition(" ")
        if not self.sweeps[1:]:
            told = f"An earlier sweep of this storage, {names}, {verb}s {rest}"
        else:
            told = f"{len(self.sweeps)} earlier sweeps of this storage {self.same} ({names})"
        return (
            f"{told}. No seed is spent twice: the fresh seeds lie above {self.last}. Each of these sweeps has an "
            "error of 5 % of its own."
        )


REPLACED = ("arms", "search", "fixed", "budget", "confirm", "objective", "compare", "target", "published")
"""The fields of a file that a size or stage may replace."""


class Division(_Settings):
    """One of the sizes or stages of a file: a separate sweep, called NAME-SIZE or NAME-STAGE. Its settings override the
    base experiment; the fields of a sweep that it gives replace those of the file."""

    beside = REPLACED

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        described = handler.resolve_ref_schema(handler(schema))
        return {
            "type": "object",
            "description": described.get("description", ""),
            "properties": {
                field: {"of_file": field, "default": None} for field in cls.beside
            },  # `json_schema` makes it a reference
            "additionalProperties": True,
        }


class Scale(Config):
    """Marks a sweep that is not at its full setting; written by `--scale`. The numbers below are those of the full
    setting."""

    factor: float = Field(gt=0, lt=1)
    """The remaining share of the updates, the warm-up and the budgets."""
    model: bool = False
    """Whether the layers also have only this share of their parameters."""
    max_steps: int
    """Updates of one trial."""
    items: int
    """Tokens or images of one trial."""
    parameters: int
    """Weights in the matrices of the layers."""
    changed: dict[str, str] = {}
    """Dotted path -> what the command line set besides the scale, such as '8 instead of 512'."""
