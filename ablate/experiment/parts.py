"""The fields of the parts of an experiment whose behaviour is an addon: downstream tasks, warm start, adapters,
alignment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ablate.config.base import Config, Names
from ablate.config.bounds import MOST_BATCH, MOST_ITEMS, MOST_LENGTH, MOST_STEPS, MOST_WIDTH
from ablate.config.errors import Problem
from ablate.experiment.trainer import TrainerConfig
from ablate.models.config import ALL


class EvaluationConfig(Config):
    """Downstream tasks that are scored during training, without changing any of its numbers. Needs the extra eval."""

    tasks: Names = ()
    """Tasks of lm-evaluation-harness, such as arc_easy,piqa or a list. None: no evaluation."""
    every_n_steps: int | None = Field(None, gt=0, le=MOST_STEPS)
    """Updates between two evaluations; there is always one after the last update. None: only that one."""
    task_data: str | None = None
    """A folder with the data of the tasks, each laid out as its repository on the hub. None: the Hugging Face hub."""
    shots: int | None = Field(None, ge=0, le=MOST_BATCH)
    """Solved examples before each question. None: the task's own number, mostly 0."""
    limit: int | None = Field(None, gt=0, le=MOST_ITEMS)
    """Number of questions of each task, from its start. None: all."""
    batch_size: int = Field(16, gt=0, le=MOST_BATCH)
    """Number of answers that are scored at a time."""

    @field_validator("tasks", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    def validate(self, task: str, strategy: str) -> list[Problem]:  # type: ignore[override]
        """Return the problems in an experiment with this task and strategy."""
        if not self.tasks:
            return []
        if task != "language_modeling":
            return [Problem("tasks", "are for language models only; remove them", list(self.tasks))]
        if strategy == "fsdp":
            return [Problem("tasks", "need whole weights on each device: trainer.strategy=ddp", list(self.tasks))]
        return []


class WarmStart(Config):
    """Weights to start from, and weights that are not trained."""

    donor: str | None = Field(None, alias="from")
    """The source run, whose weights are copied: a run's id, the path of a checkpoint, a folder that `ablate export --to
    safetensors` has written, or sweep:NAME/ARM for the trial that represents an arm. None: nothing is copied."""
    copied: Names = Field((), alias="copy")
    """Parts that are copied from the source run: embedding, final_norm, head, layers.0.attn, layers.0.mlp, ...,
    layers.0, layers or all for several. A sublayer includes the norms and learned factors of its residual
    connection."""
    freeze: Names = ()
    """Parts that are not trained: no gradient, no moments, no weight decay."""
    sha256: str | None = None
    """SHA-256 of the source run's weights. A run records it; if it is given, other weights are refused."""
    flops: float | None = Field(None, ge=0)
    """Floating-point operations of the source run, including its own source runs. A run records them."""

    @model_validator(mode="after")
    def _something(self) -> WarmStart:
        if self.copied and self.donor is None:
            raise ValueError("copy needs from: the run or the checkpoint to copy from")
        if self.donor is not None and not self.copied:
            raise ValueError("from without copy would copy nothing: set the parts, such as copy: [embedding, head]")
        if not self.copied and not self.freeze:
            raise ValueError("neither copies nor freezes anything: remove it, or set parts")
        return self


class Lora(Config):
    """Fine-tuning that only trains adapters, which are added to the matrices of a trained model (extra `hf`)."""

    rank: int = Field(8, gt=0, le=MOST_WIDTH)
    """Rows of A and columns of B (peft's r)."""
    alpha: float = Field(16.0, gt=0)
    """The adapter's output is multiplied by alpha / rank (peft's lora_alpha)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate of an adapter's input in training (peft's lora_dropout)."""
    targets: Names = ("attn", "mlp")
    """The linear layers with an adapter (peft's target_modules): sublayers (attn, mlp), their layers by name (qkv_proj,
    o_proj, gate_up_proj, down_proj; of a ViT qkv, proj, fc1, fc2; of a GRU input, recurrent), or parts (layers.0,
    layers.0.attn). Parts in warm_start.freeze get none."""

    def validate(self, copied: Iterable[str], tensor_parallel: int) -> list[Problem]:  # type: ignore[override]
        """Return the problems of an experiment with adapters that copies these parts of a source run, with the
        experiment's paths."""
        problems: list[Problem] = []
        if ALL not in copied:
            text = "adapts a trained model, and this one starts from random weights, or from a part of another model's"
            problems.append(Problem("lora", f"{text}: set warm_start.from=RUN_ID and warm_start.copy=all"))
        if tensor_parallel > 1:
            text = "must be 1 with lora: adapters need whole matrices"
            problems.append(Problem("trainer.tensor_parallel", text, tensor_parallel))
        return problems


METRICS = {"reward": ("accuracy", "margin"), "dpo": ("accuracy", "margin", "kl"), "rloo": ("kl",)}
"""Method -> metrics on held-out pairs."""
JUDGED = ("reward", "start_reward", "win_rate")
"""Further metrics if there is a reward model."""


_NOT_HERE = {
    "compile", "strategy", "devices", "nodes", "fsdp", "tensor_parallel", "activation_checkpointing", "cpu_offload",
    "gradient_sync",
    "ema_decay", "copy_to", "diverge_factor", "num_workers", "callbacks", "loggers", "profiler",
}  # fmt: skip
"""Fields of the trainer that are not passed to TRL's trainers."""


class AlignConfig(Config):
    """Alignment with preference pairs, instead of training on text. Needs the extra rlhf. Length, batches (of pairs;
    with rloo, of answers), optimizer, schedule and seed are the experiment's; its data has the kind preferences, and it
    starts from all weights of another run (`warm_start`).
    """

    method: Literal["reward", "dpo", "rloo"]
    """reward: a reward model, which assigns a number to an answer; dpo: direct preference optimization; rloo: REINFORCE
    leave-one-out, with the policy's answers scored by a reward model."""
    beta: float | None = Field(None, ge=0)
    """Strength of the penalty for the policy's divergence from its start. None: TRL's default, 0.1 for dpo and 0.05 for
    rloo."""
    reward: str | None = None
    """A reward model: a run with the method reward, its folder, or sweep:NAME/ARM. It must be the same for all compared
    models. rloo trains with it; for dpo it is only a metric."""
    reward_sha256: str | None = None
    """SHA-256 of the reward model's weights. A run records it; if it is given, other weights are refused."""
    trust_remote_code: bool = False
    """Whether code that comes with the reward model may be run. The code of a run of this store, which Ablate wrote
    itself, is always run."""
    answers: int = Field(4, ge=2, le=MOST_BATCH)
    """Number of answers that rloo samples and compares for each prompt."""
    length: int = Field(64, gt=0, le=MOST_LENGTH)
    """Maximum tokens of a generated answer."""
    measured: int = Field(64, gt=0, le=MOST_ITEMS)
    """Maximum number of held-out pairs for the evaluation."""

    @model_validator(mode="after")
    def _validate_method(self) -> AlignConfig:
        names = [name for name in ("reward", "beta") if getattr(self, name) is not None]
        if self.method == "reward" and names:
            raise ValueError(f"{' and '.join(names)}: the method reward uses neither beta nor another reward model")
        return self

    @property
    def unit(self) -> str:
        """The unit of the items in an update's batch."""
        return "answers" if self.method == "rloo" else "pairs"

    @property
    def answer(self) -> int | None:
        """Tokens that must fit after a prompt; None: the answers of the pair."""
        return self.length if self.method == "rloo" else None

    @property
    def reported(self) -> list[str]:
        """The metrics of a validation."""
        judged = JUDGED if self.method == "rloo" or self.reward is not None else ()
        return [f"align/{name}" for name in (*METRICS[self.method], *judged)]

    def validate(  # type: ignore[override]
        self, data: str, start: WarmStart | None, lora: Lora | None, trainer: TrainerConfig, tasks: Sequence[str]
    ) -> list[Problem]:
        """Return the conflicts with the rest of the experiment: the kind of its `data`, its start, adapters, the
        trainer, downstream tasks. Paths are relative to the experiment."""
        problems: list[Problem] = []
        if data != "preferences":
            problems.append(Problem("data.kind", "align needs data.kind=preferences", data))
        if start is None or start.copied != ("all",) or start.freeze:
            text = (
                "align starts from a whole model and trains all of it: set only warm_start.from and warm_start.copy=all"
            )
            problems.append(Problem("warm_start", text))
        if self.method == "rloo" and trainer.batch_size % self.answers:
            text = f"must be a multiple of align.answers ({self.answers})"
            problems.append(Problem("trainer.batch_size", text, trainer.batch_size))
        for name in sorted(_NOT_HERE):
            plain = type(trainer).model_fields[name].default
            if (value := getattr(trainer, name)) != plain and not (name == "num_workers" and value == 0):
                way = "leave it out" if plain == () else f"leave it at {plain}"
                given = None if plain == () else value
                problems.append(Problem(f"trainer.{name}", f"align does not support this: {way}", given))
        if lora is not None:
            text = "cannot be combined with align, which trains all weights (in a file with stages: stages.NAME.lora)"
            problems.append(Problem("lora", text))
        if trainer.precision == "bf16-true":
            text = "must be auto, 32-true or bf16-mixed with align"
            problems.append(Problem("trainer.precision", text, trainer.precision))
        if trainer.diagnose.names:
            problems.append(
                Problem("trainer.diagnose", "cannot be combined with align, which does not measure layers: remove it")
            )
        if tasks:
            text = "cannot be combined with align: score the aligned model with ablate evaluate"
            problems.append(Problem("evaluation.tasks", text, list(tasks)))
        return problems
