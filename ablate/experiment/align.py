"""The align part of an experiment: what a language model learns from preference pairs, and by which method."""

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
"""Method -> what is measured on held-out pairs."""
JUDGED = ("reward", "start_reward", "win_rate")
"""What is measured besides where there is a reward model."""


_NOT_HERE = {
    "compile", "strategy", "devices", "nodes", "tensor_parallel", "activation_checkpointing", "cpu_offload",
    "gradient_sync",
    "ema_decay", "copy_to", "diverge_factor", "num_workers", "callbacks", "loggers", "profiler",
}  # fmt: skip
"""Fields of the trainer that TRL's are not told of."""


class AlignConfig(Config):
    """Alignment by preference pairs, in the place of training on text. Needs ablate[rlhf].

    Length, batches (of pairs; of rloo of answers), optimizer, schedule and seed are those of the experiment, its data
    is of the kind preferences, and it starts from all of another run (`warm_start`).
    """

    method: Literal["reward", "dpo", "rloo"]
    """reward: a reward model, which gives an answer a number; dpo: direct preference optimization; rloo: REINFORCE
    leave-one-out, the answers of the policy judged by a reward model."""
    beta: float | None = Field(None, ge=0)
    """How strongly the policy is held to where it starts. None: TRL's, 0.1 for dpo and 0.05 for rloo."""
    reward: str | None = None
    """A reward model, which is to be the same for all that is compared: a run of the method reward, its folder, or
    sweep:NAME/ARM. rloo learns from it; for dpo it only measures."""
    reward_sha256: str | None = None
    """Of the reward model's weights. A run writes down what it found, and with this given takes no others."""
    trust_remote_code: bool = False
    """Whether code that comes with the reward model may be run. That of a run of this store is run without it: it was
    written here."""
    answers: int = Field(4, ge=2, le=MOST_BATCH)
    """Answers to each prompt of rloo, which are compared with each other."""
    length: int = Field(64, gt=0, le=MOST_LENGTH)
    """The most tokens of an answer that is generated."""
    measured: int = Field(64, gt=0, le=MOST_ITEMS)
    """The most held-out pairs that are measured on."""

    @model_validator(mode="after")
    def _validate_method(self) -> AlignConfig:
        names = [name for name in ("reward", "beta") if getattr(self, name) is not None]
        if self.method == "reward" and names:
            raise ValueError(f"{' and '.join(names)}: a reward model takes neither beta nor another reward model")
        return self

    @property
    def unit(self) -> str:
        """What an update is a batch of, counted."""
        return "answers" if self.method == "rloo" else "pairs"

    @property
    def answer(self) -> int | None:
        """Tokens that there has to be room for behind a prompt; None: for the answers of the pair."""
        return self.length if self.method == "rloo" else None

    @property
    def reported(self) -> list[str]:
        """The metrics of a validation."""
        judged = JUDGED if self.method == "rloo" or self.reward is not None else ()
        return [f"align/{name}" for name in (*METRICS[self.method], *judged)]

    def validate(  # type: ignore[override]
        self, data: str, start: WarmStart | None, lora: Lora | None, trainer: TrainerConfig, tasks: Sequence[str]
    ) -> list[Problem]:
        """Return what does not fit the rest of the experiment: the kind of its `data`, what it starts from, adapters,
        the trainer, downstream tasks. Paths are those of the experiment."""
        problems: list[Problem] = []
        if data != "preferences":
            problems.append(Problem("data.kind", "align learns from data.kind=preferences", data))
        if start is None or start.copied != ("all",) or start.freeze:
            text = (
                "align starts from a whole model, and trains all of it: warm_start.from and warm_start.copy=all alone"
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
                problems.append(Problem(f"trainer.{name}", f"align knows no such thing: {way}", given))
        if lora is not None:
            text = "goes without align, which trains all weights (in a file with stages: stages.NAME.lora)"
            problems.append(Problem("lora", text))
        if trainer.precision == "bf16-true":
            text = "of align: auto, 32-true or bf16-mixed"
            problems.append(Problem("trainer.precision", text, trainer.precision))
        if trainer.diagnose.names:
            problems.append(Problem("trainer.diagnose", "align measures no layers: leave it out"))
        if tasks:
            text = "not during align: ablate evaluate scores what comes of it"
            problems.append(Problem("evaluation.tasks", text, list(tasks)))
        return problems
