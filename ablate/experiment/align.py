"""The align part of an experiment: alignment of a language model with preference pairs, and its method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from ablate.config.base import Config
from ablate.config.bounds import MOST_BATCH, MOST_ITEMS, MOST_LENGTH
from ablate.config.errors import Problem
from ablate.experiment.lora import Lora
from ablate.experiment.trainer import TrainerConfig
from ablate.experiment.warm_start import WarmStart

METRICS = {"reward": ("accuracy", "margin"), "dpo": ("accuracy", "margin", "kl"), "rloo": ("kl",)}
"""Method -> metrics on held-out pairs."""
JUDGED = ("reward", "start_reward", "win_rate")
"""Further metrics if there is a reward model."""


_NOT_HERE = {
    "compile", "strategy", "devices", "nodes", "tensor_parallel", "activation_checkpointing", "cpu_offload",
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
