"""`Experiment`: one training run as one validated, frozen tree, from YAML, `key=value` or Optuna."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from ablate.config.base import Kind, Names
from ablate.config.bounds import MOST_SEED, MOST_STEPS
from ablate.config.building import load_plugins
from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.formatting import format_settings
from ablate.config.lazy import postpone_imports
from ablate.config.merging import Tree, iterate_leaves, merge
from ablate.config.yaml import read_yaml
from ablate.data import DataConfig, data_kinds
from ablate.data.base import Documents
from ablate.experiment.fitting import fit_documents, fit_parametrization, fit_sphere, fit_task
from ablate.experiment.parts import AlignConfig, EvaluationConfig, Lora, WarmStart
from ablate.experiment.trainable import Trainable, experiments
from ablate.experiment.trainer import TrainerConfig
from ablate.experiment.validation import Validation, plan_validation
from ablate.models import ModelConfig, models, validate_asks, validate_wiring
from ablate.norms import Initialization, Placement, initializations, placements
from ablate.optim.optimizers import OptimizerConfig, optimizers
from ablate.optim.parametrizations import Multipliers, Parametrization, Scaled, parametrizations
from ablate.optim.schedules import ScheduleConfig, schedules
from ablate.tasks import Task, tasks

if TYPE_CHECKING:
    from ablate.experiment.trainer import Named
    from ablate.models import Model

with postpone_imports():
    from ablate.optim import scaling


class Experiment(Trainable):
    """One training run. Fields that are not given have their own default, or the model family's."""

    model: Annotated[ModelConfig, models] = Field("llama", validate_default=True)
    """The model family and its size: a kind, or a named size such as llama-71m or vit-tiny."""
    norm: Annotated[Placement, placements] = Field("pre", validate_default=True)
    """The placement of the norms, with its own fields, and the norm layer."""
    init: Annotated[Initialization, initializations] = Field("normal", validate_default=True)
    """Initialisation of the weights."""
    parametrization: Annotated[Parametrization, parametrizations] = Field("standard", validate_default=True)
    """How initial weights, learning rates and multipliers change with the size of the model."""
    data: Annotated[DataConfig, data_kinds] = Field("topics", validate_default=True)
    """The training data. Default: topics for LLaMA, digits for ViT."""
    task: Annotated[Task, tasks] = Field(None, validate_default=False)  # type: ignore[assignment]
    """The task that the model is trained for. None: the one that the data's targets are for."""
    optimizer: Annotated[OptimizerConfig, optimizers] = Field("adamw", validate_default=True)
    """The optimizer and its peak learning rate."""
    schedule: Annotated[ScheduleConfig, schedules] = Field("cosine", validate_default=True)
    """The learning-rate schedule."""
    trainer: TrainerConfig = TrainerConfig()
    """Length, batches, precision and devices of training."""
    warm_start: WarmStart | None = None
    """Weights of another run to start from, and weights that are not trained. None: all weights start by `init` and are
    trained."""
    lora: Lora | None = None
    """Adapters for the matrices that `warm_start` copies; only the adapters are trained. None: the weights are
    trained."""
    align: AlignConfig | None = None
    """Alignment with preference pairs: a reward model or a policy. None: training on text or images."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Downstream tasks that are scored during training."""
    seed: int = Field(0, ge=0, le=MOST_SEED)
    """Seed of the initial weights, the order of the data and stochastic depth. It does not change the validation
    split."""
    plugins: Names = ()
    """Your own Python files, relative to the current directory, which register further kinds."""

    @model_validator(mode="before")
    @classmethod
    def _family_defaults(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        load_plugins(data)
        return fill_in({key: value for key, value in data.items() if key != "task" or value is not None})

    def check(self) -> list[Problem]:
        if self.task is None:  # a default that follows the data, which only now is known to be right
            kind = self.data.default_task  # `fit_task` reports an unknown one
            object.__setattr__(self, "task", tasks.parse(kind if kind in tasks else next(iter(tasks))))
        problems = [problem.within("model") for problem in self.model.validate()]
        stack = self.model.stack()
        placed = [*self.norm.validate_layer(stack), *self.norm.validate(stack)]
        problems += [problem.within("norm") for problem in placed]
        chosen = (self.norm, self.init)
        unfit = [*validate_wiring(self.model, *chosen), *self.model.validate_choices(*chosen)]
        problems += unfit or validate_asks(self.model, *chosen)
        problems += [problem.within("init") for problem in self.init.validate(stack)]
        if not unfit:
            later = {"lora": self.lora, "align": self.align}
            problems += fit_parametrization(self.parametrization, self.model, *chosen, self.optimizer, self.task, later)
            problems += fit_sphere(self.norm, self.model, self.init, self.parametrization, later)
        unfit_task = fit_task(self.task, self.model, self.data)
        problems += unfit_task or self._resolve_length()
        trainer, warmup = self.trainer, self.schedule.warmup(self.trainer.max_steps)
        if warmup >= trainer.max_steps:
            field = "warmup_fraction" if self.schedule.warmup_steps is None else "warmup_steps"
            text = f"the warm-up ({warmup}) must be below trainer.max_steps ({trainer.max_steps})"
            problems.append(Problem(f"schedule.{field}", text, getattr(self.schedule, field)))
        problems += [problem.within("trainer") for problem in trainer.validate()]
        unmeasured = trainer.diagnose.validate_model(self.model.keeps_shape, self.norm.at(0, stack.depth))
        problems += [problem.within("trainer.diagnose") for problem in unmeasured]
        problems += [problem.within("optimizer") for problem in self.optimizer.validate(trainer.strategy == "fsdp")]
        if self.model.of_library and trainer.strategy == "fsdp":
            text = f"model {self.model.title} is built whole by its library and cannot be sharded. Accepted: auto, ddp"
            problems.append(Problem("trainer.strategy", text, trainer.strategy))
        if self.lora is not None:
            copied = self.warm_start.copied if self.warm_start else ()
            problems += self.lora.validate(copied, trainer.tensor_parallel)
        downstream = self.evaluation.validate(self.task.kind, trainer.strategy)
        problems += [problem.within("evaluation") for problem in downstream]
        if self.align is not None:
            parts = self.data.kind, self.warm_start, self.lora, trainer, self.evaluation.tasks
            problems += self.align.validate(*parts)
        problems += fit_documents(self.data, self.model)
        batch = trainer.batch_size // trainer.accumulate
        problems += [problem.within("data") for problem in self.data.validate(batch)]
        return problems

    def _resolve_length(self) -> list[Problem]:
        """Set `trainer.max_steps` by `trainer.max_tokens`, if that is given, and return the problems."""
        trainer = self.trainer
        if trainer.max_tokens is None:
            return []
        steps = trainer.max_tokens // self.items_per_update
        update = f"{self.items_per_update:,} tokens of an update (trainer.batch_size x data.seq_len)"
        if self.unit != "tokens":
            text = (
                f"counts tokens, and {self.model.title} is trained on {self.unit} here: set trainer.max_steps instead"
            )
        elif "max_steps" in trainer.model_fields_set and trainer.max_steps != steps:
            text = (
                f"is {steps:,} updates, and trainer.max_steps={trainer.max_steps} is given too: remove one of the two"
            )
        elif not 0 < steps <= MOST_STEPS:
            text = f"must be at least the {update}" if not steps else f"is more than {MOST_STEPS:,} times the {update}"
        else:
            object.__setattr__(self, "trainer", trainer.model_copy(update={"max_steps": steps}))
            return []
        return [Problem("trainer.max_tokens", text, trainer.max_tokens)]

    is_own: ClassVar[bool] = True

    def describe_parts(self) -> dict[str, str]:
        return {
            PARAMETRIZATION: _describe_parts([self.parametrization]),
            "trainer.callbacks": _describe_parts(self.trainer.callbacks),
            "trainer.loggers": _describe_parts(self.trainer.loggers),
            # of arms with other batches and as many tokens, the number of updates is no further difference
            **({} if self.trainer.max_tokens is None else {"trainer.max_steps": "as trainer.max_tokens has it"}),
        }

    def identify(self) -> dict[str, Any]:
        return {path: value for path, value in self.flat().items() if path.startswith(("model.", "data."))}

    @classmethod
    def pick_factor(cls, differing: Iterable[str]) -> tuple[str, ...]:
        """Return the first of placement, norm layer, initialisation, attention, warm start and parametrisation in which
        arms differ."""
        paths = list(differing)
        return next(((part,) for part in FACTORS if any(is_of(path, part) for path in paths)), ())

    @classmethod
    def describe_factors(cls) -> str:
        return "no placement, norm layer, initialisation, attention, warm start or parametrisation"

    def list_references(self) -> dict[str, str]:
        names = {
            WEIGHTS: self.warm_start.donor if self.warm_start else None,
            REWARD: self.align.reward if self.align else None,
        }
        return {path: name for path, name in names.items() if name is not None}

    def identify_model(self) -> str:
        """Return the placement of every layer, and the settings that are common to all layers, the parametrisation
        among them."""
        norm, depth = self.norm, self.model.layers
        layers = [norm.at(i, depth).model_dump(mode="json", exclude={"layer", "final_norm"}) for i in range(depth)]
        shared = norm.model_dump(mode="json", include={"layer", "final_norm"})
        others = (self.init, self.model, self.parametrization)
        return json.dumps([layers, shared, *(part.model_dump(mode="json") for part in others)])

    @property
    def procedure(self) -> str:
        """The procedure: "training" on text or images, or "alignment" with preference pairs."""
        return "training" if self.align is None else "alignment"

    @property
    def resumes(self) -> bool:
        return self.align is None

    @property
    def task_name(self) -> str:
        return self.task.kind

    @property
    def metrics(self) -> list[str]:
        """The metrics of a validation, which a sweep can compare, besides scores on downstream tasks, which are known
        once the tasks are loaded (`Extension.count_items`)."""
        if self.align:
            return self.align.reported
        metrics = self.task.metrics
        names = [f"val/{metric.name}" for metric in metrics]
        names += [f"val/{part}/{m.name}" for part in self.data.val_names for m in metrics if m.further]
        return names if self.trainer.ema_decay is None else [*names, *map(name_average, names)]

    @property
    def length(self) -> int:
        return self.trainer.max_steps

    @property
    def warmup(self) -> int:
        return self.schedule.warmup(self.trainer.max_steps)

    @property
    def copied_to(self) -> str | None:
        return self.trainer.copy_to

    def list_cautions(self) -> list[str]:
        depth, updates = self.model.stack().depth, self.trainer.max_steps
        layers = [self.norm, *(self.norm.at(index, depth) for index in range(depth))]
        told = (part.caution(depth, updates) for layer in layers for part in layer.list_parts())
        return list(dict.fromkeys(text for text in told if text))

    def describe_length(self) -> str:
        return f"{self.trainer.max_steps:,} updates = {self.items:,} {self.unit}"

    def count_own_samples(self) -> int | None:
        return self.validation.samples if self.trainer.val_samples == "auto" else None

    def with_samples(self, count: int) -> Experiment:
        if self.trainer.val_samples != "auto":
            return self
        return self.model_copy(update={"trainer": self.trainer.model_copy(update={"val_samples": count})})

    @property
    def unit(self) -> str:
        """The unit of its items: tokens or images; for an alignment, pairs or answers."""
        return self.task.unit if self.align is None else self.align.unit

    @property
    def items_per_sample(self) -> int:
        """Units in one sample of a batch: the tokens of a sequence; 1 of an image, a pair or an answer."""
        return self.task.count_items(self.data.input_shape) if self.align is None else 1

    @property
    def items_per_update(self) -> int:
        """Tokens or images of one update; for an alignment, pairs or answers."""
        return self.trainer.batch_size * self.items_per_sample

    @property
    def items(self) -> int:
        """Tokens or images of the whole run; for an alignment, pairs or answers."""
        return self.trainer.max_steps * self.items_per_update

    @property
    def validation(self) -> Validation:
        """The number and size of its validations."""
        return plan_validation(self.trainer, self.data, self.task, limited=self.procedure == "training")

    def shorten(self, updates: int) -> Experiment:
        """Return the run of so many updates that begins as this one does, as far as its schedule lets it, and is
        validated once, after its last update, on the same samples."""
        full, samples = self.trainer, self.validation.samples
        length = {
            "max_steps": updates,
            "max_tokens": None,
            "val_check_interval": updates,
            "val_samples": samples or "all",
        }
        schedule = self.schedule.shorten(full.max_steps, updates)
        return self.model_copy(update={"trainer": full.model_copy(update=length), "schedule": schedule})

    @property
    def multipliers(self) -> Multipliers:
        """The multipliers of the parametrisation."""
        return self.parametrization.list_multipliers(self.model.stack())

    def narrowed(self, share: float) -> dict[str, Any]:
        """Return dotted path -> value: the settings of a narrower model with about `share` of the weights of its layers
        (see `ModelConfig.narrowed`), and of a base that is narrower by the same factor, so that the multipliers
        stay."""
        fields = self.model.narrowed(share)
        changes = {f"model.{field}": value for field, value in fields.items()}
        if isinstance(self.parametrization, Scaled):
            hidden = round(self.parametrization.base.hidden * fields["hidden"] / self.model.hidden)
            changes["parametrization.base.hidden"] = max(1, hidden)
        return changes

    def build_model(self, classes: int, shape: tuple[int, ...]) -> Model:
        """Return the initialised model for inputs of `shape`, with what the task adds to it. `classes`: vocabulary size
        or number of classes."""
        model: Model = self.model.build(self.norm, self.init, classes, shape)
        if (multipliers := self.multipliers) != Multipliers():
            scaling.scale_model(model, multipliers, self.norm, self.model.stack())
        model.masks_documents = isinstance(self.data, Documents) and self.data.mask_documents
        self.task.adapt(model, classes, shape)
        return model

    def after_update(self, model: Model, updates: int) -> None:
        """Do to `model` what its placement and its own options ask for after so many updates, and before the first."""
        self.norm.after_update(model, updates)
        model.after_update()

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Experiment:
        """Return the experiment of a YAML file (none: all defaults) under `overrides`, a mapping of dotted paths."""
        base = {} if file is None else read_yaml(Path(file))
        return cls.from_mapping(base, overrides or {}, source=str(file) if file else "the configuration")


PARAMETRIZATION, WEIGHTS, REWARD = "parametrization", "warm_start.from", "align.reward"
PLACEMENT, LAYER = "norm", "norm.layer"
FACTORS = (PLACEMENT, LAYER, "init", "model.attention", "warm_start", PARAMETRIZATION)
"""The compared factor, if a sweep names none."""


def is_within(path: str, parts: Iterable[str]) -> bool:
    """Return whether a dotted path is one of `parts`, or below one."""
    return any(path == part or path.startswith(f"{part}.") for part in parts)


def is_of(path: str, part: str) -> bool:
    """Return whether `path` belongs to one of the factors: the placement does not include the norm layer."""
    return is_within(path, [part]) and not (part == PLACEMENT and is_within(path, [LAYER]))


def _describe_parts(parts: Iterable[Kind | Named]) -> str:
    """Return parts with a kind, such as callbacks, in their order: 'noise (scale=0.1)', 'mup (base.hidden=64)'."""
    described = []
    for part in parts:
        fields = format_settings(
            dict(iterate_leaves(part.model_dump(mode="json", exclude={"kind"}, exclude_none=True))), {}
        )
        described.append(f"{part.kind} ({fields})" if fields else part.kind)
    return ", ".join(described) or "none"


def name_average(metric: str) -> str:
    """Return the name of `metric` where it is measured with the average of the weights."""
    return metric.replace("val/", "val/ema/", 1)


def find_class(*mappings: Any) -> type[Trainable]:
    """Return the class of the experiment that `mappings` describe, later ones over earlier: that of its `kind` or,
    without one, `Experiment`. Raises ConfigError for an unknown kind."""
    kinds = [layer["kind"] for layer in mappings if isinstance(layer, Mapping) and layer.get("kind") is not None]
    if not kinds:
        return Experiment
    if kinds[-1] not in (known := experiments.accepted):
        hint = did_you_mean(str(kinds[-1]), known)
        text = (
            f"unknown kind of experiment. Accepted: {', '.join(known)}; without kind it is a model that Ablate trains"
        )
        raise ConfigError([Problem("experiment.kind", f"{text}.{hint}", kinds[-1])])
    return experiments[kinds[-1]]


def build_experiment(*mappings: Mapping[str, Any], source: str = "the configuration") -> Trainable:
    """Return the experiment that `mappings` describe, later ones over earlier. Raises ConfigError with all problems."""
    load_plugins(*mappings, source=source)  # one of them may register the kind
    return find_class(*mappings).from_mapping(*mappings, source=source)


def require_own(experiment: Trainable) -> Experiment:
    """Return `experiment`, for what only Ablate's own trainer has: data, updates, memory, FLOPs. Raises ConfigError for
    one of another kind."""
    if not isinstance(experiment, Experiment):
        text = "the data, model, memory and FLOPs of this kind are not known, and are needed here"
        raise ConfigError([Problem("experiment.kind", text, experiment.procedure)])
    return experiment


def fill_in(tree: Mapping[str, Any]) -> Tree:
    """Return `tree` merged over the defaults of its model family. Settings of a task without its kind are those of the
    family's usual one."""
    model = {key: value for key, value in tree.items() if key.partition(".")[0] == "model"}
    family = models.kind_of(merge(Experiment, {}, model).get("model", {}))
    merged = merge(Experiment, merge(Experiment, {}, family.defaults if family else {}), tree)
    if family and isinstance(task := merged.get("task"), Mapping) and task.get("kind") is None:
        merged["task"] = {**task, "kind": family.task}
    return merged
