"""The align part of an experiment: what a language model learns from preference pairs, and by which method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from ablate.config.base import Config

if TYPE_CHECKING:
    from ablate.experiment.tree import Experiment

METRICS = {"reward": ("accuracy", "margin"), "dpo": ("accuracy", "margin", "kl"), "rloo": ("kl",)}
"""Method -> what is measured on held-out pairs."""
JUDGED = ("reward", "start_reward", "win_rate")
"""What is measured besides where there is a reward model."""


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
    answers: int = Field(4, ge=2)
    """Answers to each prompt of rloo, which are compared with each other."""
    length: int = Field(64, gt=0)
    """The most tokens of an answer that is generated."""
    measured: int = Field(64, gt=0)
    """The most held-out pairs that are measured on."""

    @model_validator(mode="after")
    def _of_the_method(self) -> AlignConfig:
        given = [name for name in ("reward", "beta") if getattr(self, name) is not None]
        if self.method == "reward" and given:
            raise ValueError(f"{' and '.join(given)}: a reward model takes neither beta nor another reward model")
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


Found = list[tuple[tuple[str, ...], str, Any]]


def problems(experiment: Experiment) -> Found:
    """What does not fit together in an experiment with, or without, `align`: (path, message, given)."""
    align, start, trainer = experiment.align, experiment.warm_start, experiment.trainer
    if align is None:
        return []
    found: Found = []
    if experiment.data.kind != "preferences":
        found.append((("data", "kind"), "align learns from data.kind=preferences", experiment.data.kind))
    if start is None or start.copied != ("all",) or start.freeze:
        text = "align starts from a whole model, and trains all of it: warm_start.from and warm_start.copy=all alone"
        found.append((("warm_start",), text, None))
    if align.method == "rloo" and trainer.batch_size % align.answers:
        text = f"must be a multiple of align.answers ({align.answers})"
        found.append((("trainer", "batch_size"), text, trainer.batch_size))
    for name in sorted(_NOT_HERE):
        if (given := getattr(trainer, name)) != (plain := type(trainer).model_fields[name].default):
            found.append((("trainer", name), f"align knows no such thing: leave it at {plain}", given))
    if experiment.lora is not None:
        text = "goes without align, which trains all weights (in a file with stages: stages.NAME.lora)"
        found.append((("lora",), text, None))
    if trainer.precision == "bf16-true":
        found.append((("trainer", "precision"), "of align: auto, 32-true or bf16-mixed", trainer.precision))
    if trainer.diagnose.names:
        found.append((("trainer", "diagnose"), "align measures no layers: leave it out", None))
    if experiment.evaluation.tasks:
        text = "not during align: ablate evaluate scores what comes of it"
        found.append((("evaluation", "tasks"), text, list(experiment.evaluation.tasks)))
    return found


_NOT_HERE = {
    "compile", "strategy", "devices", "nodes", "tensor_parallel", "activation_checkpointing", "cpu_offload",
    "ema_decay", "copy_to", "diverge_factor", "num_workers",
}  # fmt: skip
"""Fields of the trainer that TRL's are not told of."""
