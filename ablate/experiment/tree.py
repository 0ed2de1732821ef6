"""`Experiment`: one training run as one validated, frozen tree, from YAML, `key=value` and Optuna alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ablate.config.base import Config, Names
from ablate.config.building import build, load_plugins
from ablate.config.merging import Tree, leaves, merge
from ablate.config.yaml import read_yaml
from ablate.data import DataConfig, data_kinds
from ablate.experiment.align import AlignConfig
from ablate.experiment.align import problems as problems_of_alignment
from ablate.experiment.evaluation import EvaluationConfig
from ablate.experiment.lora import Lora
from ablate.experiment.trainer import TrainerConfig
from ablate.experiment.warm_start import WarmStart
from ablate.models import ModelConfig, models
from ablate.norms import Initialization, Placement, initializations, placements
from ablate.optim.optimizers import OptimizerConfig, ScheduleConfig, optimizers, schedules


class Experiment(Config):
    """One training run. What is not given takes the default of its field, or of the model family."""

    model: Annotated[ModelConfig, models] = Field("llama", validate_default=True)
    """The model family and its size: a kind, or a named size such as llama-71m or vit-tiny."""
    norm: Annotated[Placement, placements] = Field("pre", validate_default=True)
    """The placement of the norms, with its own fields, and the norm layer."""
    init: Annotated[Initialization, initializations] = Field("normal", validate_default=True)
    """How the weights start."""
    data: Annotated[DataConfig, data_kinds] = Field("topics", validate_default=True)
    """What is trained on. Default: topics for LLaMA, digits for ViT."""
    optimizer: Annotated[OptimizerConfig, optimizers] = Field("adamw", validate_default=True)
    """The optimizer and its peak learning rate."""
    schedule: Annotated[ScheduleConfig, schedules] = Field("cosine", validate_default=True)
    """The course of the learning rate."""
    trainer: TrainerConfig = TrainerConfig()
    """How long, in what batches, in what precision."""
    warm_start: WarmStart | None = None
    """Weights of another run to start from, and weights that are not trained. None: all start by `init` and learn."""
    lora: Lora | None = None
    """Adapters beside the matrices of what `warm_start` copies, which alone are trained. None: the weights are."""
    align: AlignConfig | None = None
    """Preference pairs in the place of text: a reward model or a policy. None: trained on text or images."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Downstream tasks that are scored during training."""
    seed: int = Field(0, ge=0)
    """What the initial weights, the order of the data and any random depth depend on. Not the validation split."""
    plugins: Names = ()
    """Python files of one's own, relative to the current directory, whose kinds can be used like any other."""

    @model_validator(mode="before")
    @classmethod
    def _family_defaults(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        load_plugins(data)
        family = models.kind_of(merge(cls, {}, data).get("model", {}))
        return merge(cls, merge(cls, {}, family.defaults if family else {}), data)

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        found = [(("model", *path), text, given) for path, text, given in self.model.problems()]
        stack = self.model.stack()
        found += [(("norm", *path), text, given) for path, text, given in self.norm.problems(stack)]
        found += [(("init", *path), text, given) for path, text, given in self.init.problems(stack)]
        if self.data.task != self.model.task:
            data, model = (f"{part.kind} is for {part.task.replace('_', ' ')}" for part in (self.data, self.model))
            fitting = [kind for kind in data_kinds if data_kinds[kind].task == self.model.task]
            found.append((("data", "kind"), f"{data}, model {model}. Accepted: {', '.join(fitting)}", self.data.kind))
        trainer, warmup = self.trainer, self.schedule.warmup(self.trainer.max_steps)
        if warmup >= trainer.max_steps:
            field = "warmup_fraction" if self.schedule.warmup_steps is None else "warmup_steps"
            text = f"the warm-up ({warmup}) must be below trainer.max_steps ({trainer.max_steps})"
            found.append((("schedule", field), text, getattr(self.schedule, field)))
        found += [(("trainer", *path), text, given) for path, text, given in trainer.problems()]
        if self.lora is not None:
            copied = self.warm_start.copied if self.warm_start else ()
            found += self.lora.problems(copied, trainer.tensor_parallel)
        problems = self.evaluation.problems(self.model.task, trainer.strategy)
        found += [(("evaluation", *path), text, given) for path, text, given in problems]
        found += problems_of_alignment(self)
        batch = trainer.batch_size // trainer.accumulate
        found += [(("data", *path), text, given) for path, text, given in self.data.problems(batch)]
        if found:
            details: list[InitErrorDetails] = [
                {"type": PydanticCustomError("conflict", "{text}", {"text": text}), "loc": path, "input": given}
                for path, text, given in found
            ]
            raise ValidationError.from_exception_data("Experiment", details)
        return self

    @classmethod
    def from_mapping(cls, *mappings: Mapping[str, Any], source: str = "the configuration") -> Experiment:
        """The experiment of nested or dotted mappings, later ones over earlier. Raises ConfigError with all
        problems."""
        return build(cls, *mappings, source=source)

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Experiment:
        """The experiment of a YAML file (none: all defaults) under `overrides`, a mapping of dotted paths."""
        base = {} if file is None else read_yaml(Path(file))
        return cls.from_mapping(base, overrides or {}, source=str(file) if file else "the configuration")

    def to_tree(self) -> Tree:
        """The resolved configuration as plain nested mappings; `from_mapping` gives the same experiment back."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The resolved configuration as YAML."""
        return yaml.safe_dump(self.to_tree(), sort_keys=False)

    def flat(self) -> dict[str, Any]:
        """The resolved configuration as {dotted path: value}."""
        return dict(leaves(self.to_tree()))


# ---------------------------------------------------------------------------------------------------- merging


# ---------------------------------------------------------------------------------------------------- errors
