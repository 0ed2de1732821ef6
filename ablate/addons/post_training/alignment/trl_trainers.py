"""The trainers of TRL, one for each method: model, data, options and measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from ablate.addons.post_training.alignment import measures
from ablate.config.errors import AblateError
from ablate.config.lazy import import_library
from ablate.data.conversations.preferences import Pair
from ablate.experiment.parts import AlignConfig
from ablate.experiment.tree import Experiment
from ablate.optim.optimizers import build_optimizer
from ablate.tracking.tracker import STEP_METRIC, Tracker
from ablate.training.callbacks import Stop
from ablate.training.procedures import Hooks
from ablate.training.random_states import undisturbed

EXTRA = "rlhf"
OWN_CODE = True
"""Trust in models in `Setting.folder`, whose code this process has written itself a moment before."""


@dataclass(frozen=True)
class Setting:
    """The parts that all methods share."""

    experiment: Experiment
    align: AlignConfig
    folder: Path
    """Folder of the initial model."""
    tokenizer: Any
    train: Sequence[Pair]
    held: Sequence[Pair]
    reward: measures.Reward | None
    context: int
    """Context of the model in tokens."""
    autocast: bool
    """Whether bfloat16 autocast is used."""

    @property
    def measured(self) -> Sequence[Pair]:
        """The held-out pairs for the evaluation."""
        return self.held[: self.align.measured]

    def model(self, auto: str = "AutoModelForCausalLM", **more: Any) -> Any:
        """Return the initial model."""
        transformers: Any = import_library("transformers", "hf")
        model = getattr(transformers, auto).from_pretrained(self.folder, trust_remote_code=OWN_CODE, **more)
        model.config.pad_token_id = self.tokenizer.pad_token_id
        return model.to("cuda" if torch.cuda.is_available() else "cpu")

    def arguments(self, **more: Any) -> dict[str, Any]:
        """Return the arguments that every trainer of TRL gets."""
        trainer, seed = self.experiment.trainer, self.experiment.seed
        shared = {
            "output_dir": str(self.folder.parent / "trl"), "max_steps": trainer.max_steps,
            "per_device_train_batch_size": trainer.batch_size // trainer.accumulate,
            "gradient_accumulation_steps": trainer.accumulate, "max_grad_norm": trainer.gradient_clip_val or 0.0,
            "seed": seed, "data_seed": seed, "logging_steps": trainer.log_every_n_steps, "logging_first_step": True,
            "logging_nan_inf_filter": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
            "use_cpu": not torch.cuda.is_available(), "bf16": self.autocast, "gradient_checkpointing": False,
            "trust_remote_code": OWN_CODE,
        }  # fmt: skip
        beta = self.align.beta
        return {**shared, **({} if beta is None else {"beta": beta}), **more}


@dataclass(frozen=True)
class Prepared:
    """A model prepared for alignment."""

    model: Any
    trainer: Any
    """The class of TRL's trainer."""
    rows: list[dict[str, str]]
    """The training rows."""
    options: Mapping[str, Any]
    """Further arguments of the trainer."""
    measure: Callable[[], dict[str, float]]
    """The metrics of the held-out pairs, the model being in evaluation mode."""


def _prepare_reward(setting: Setting) -> Prepared:
    trl: Any = import_library("trl", EXTRA)
    import_library("transformers", "hf").set_seed(setting.experiment.seed)  # the head is new
    model = setting.model("AutoModelForSequenceClassification", num_labels=1)
    prompts = [pair.prompt for pair in setting.measured]

    def measure() -> dict[str, float]:
        better, worse = (
            measures.score_answers(
                model, setting.tokenizer, prompts, [getattr(pair, name) for pair in setting.measured]
            )
            for name in ("chosen", "rejected")
        )
        margin = fmean(a - b for a, b in zip(better, worse, strict=True))
        return {"accuracy": measures.compute_win_rate(better, worse), "margin": margin}

    rows = [{name: pair.prompt + getattr(pair, name) for name in ("chosen", "rejected")} for pair in setting.train]
    config = trl.RewardConfig(**setting.arguments(max_length=setting.context))
    return Prepared(model, trl.RewardTrainer, rows, {"args": config}, measure)


def _prepare_dpo(setting: Setting) -> Prepared:
    trl: Any = import_library("trl", EXTRA)
    policy, start = setting.model(), setting.model().eval()
    config = trl.DPOConfig(**setting.arguments(max_length=setting.context))

    def measure() -> dict[str, float]:
        margins = measures.measure_margins(policy, start, setting.tokenizer, setting.measured, config.beta)
        metrics = {"accuracy": fmean(float(value > 0) for value in margins), "margin": fmean(margins)}
        return metrics | _measure_samples(setting, policy, start)

    rows = [pair._asdict() for pair in setting.train]
    return Prepared(policy, trl.DPOTrainer, rows, {"ref_model": start, "args": config}, measure)


def _prepare_rloo(setting: Setting) -> Prepared:
    trl: Any = import_library("trl", EXTRA)
    policy, start = setting.model(), setting.model().eval()
    more = {"num_generations": setting.align.answers, "max_completion_length": setting.align.length}
    wanted = setting.reward
    assert wanted is not None

    def reward(prompts: list[str], completions: list[str], **ignored: Any) -> list[float]:
        return wanted(prompts, completions)

    rows = [{"prompt": pair.prompt} for pair in setting.train]
    options = {"reward_funcs": reward, "args": trl.RLOOConfig(**setting.arguments(**more))}
    return Prepared(policy, trl.RLOOTrainer, rows, options, lambda: _measure_samples(setting, policy, start))


METHODS: Mapping[str, Callable[[Setting], Prepared]] = {
    "dpo": _prepare_dpo,
    "reward": _prepare_reward,
    "rloo": _prepare_rloo,
}


def _measure_samples(setting: Setting, policy: Any, start: Any) -> dict[str, float]:
    """Return the metrics of answers to the held-out prompts, drawn by the seed of the experiment."""
    length, tokenizer, seed = setting.align.length, setting.tokenizer, setting.experiment.seed
    prompts = [pair.prompt for pair in setting.measured]
    metrics = {"kl": measures.measure_divergence(policy, start, tokenizer, prompts, length, seed)}
    if setting.reward is not None:
        ours, theirs = (
            measures.reward_answers(model, tokenizer, prompts, setting.reward, length, seed)
            for model in (policy, start)
        )
        metrics |= {
            "reward": fmean(ours),
            "start_reward": fmean(theirs),
            "win_rate": measures.compute_win_rate(ours, theirs),
        }
    return metrics


@dataclass
class Follower:
    """Records curves and validations during an alignment, and stops it."""

    experiment: Experiment
    prepared: Prepared
    tracker: Tracker
    hooks: Hooks
    step: int = 0
    """Updates made."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last validation."""

    def record(self, step: int, logs: Mapping[str, Any]) -> None:
        """Record a point of TRL's curves."""
        if "train_runtime" in logs:  # a summary at the end
            return
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, (int, float))}
        self._record(step, {f"train/{_NAMES.get(name, name)}": value for name, value in numbers.items()})
        if self.hooks.progress and "loss" in numbers:
            self.hooks.progress(step, numbers["loss"])

    def validate_if_due(self, step: int) -> None:
        """Validate after an update if that is due. Raises Stop if training ends early."""
        self.step, trainer = step, self.experiment.trainer
        last = step >= trainer.max_steps
        if not math.isfinite(float(torch.nn.utils.get_total_norm(list(self.prepared.model.parameters())))):
            raise Stop("diverged", f"the weights are not finite after update {step}")
        if last or step % self.experiment.validation.interval == 0:
            self._validate(step, last)
        if not last and self.hooks.asked_to_stop and self.hooks.asked_to_stop():
            raise Stop("interrupted", f"stopped at update {step}; when resumed, it starts from the beginning")

    def _validate(self, step: int, last: bool) -> None:
        with undisturbed(self.prepared.model):
            self.metrics = {f"align/{name}": value for name, value in self.prepared.measure().items()}
        self._record(step, self.metrics)
        if broken := [name for name, value in self.metrics.items() if not math.isfinite(value)]:
            raise Stop("diverged", f"{broken[0]} is not finite at update {step}")
        if self.hooks.decide and not self.hooks.decide(step, self.metrics) and not last:
            raise Stop("pruned", f"pruned at update {step}")

    def _record(self, step: int, values: Mapping[str, float]) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self.tracker.log_metrics({STEP_METRIC: step, **finite}, step * self.experiment.items_per_update)


_NAMES = {"learning_rate": "lr"}
"""TRL's names of curves -> Ablate's."""


def fit(setting: Setting, prepared: Prepared, follower: Follower) -> None:
    """Align the model with TRL's trainer. Raises Stop if it ends early."""
    datasets: Any = import_library("datasets", EXTRA)
    transformers: Any = import_library("transformers", "hf")
    experiment = setting.experiment

    class Callback(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **ignored: Any) -> None:
            follower.record(state.global_step, logs or {})

        def on_step_end(self, args: Any, state: Any, control: Any, **ignored: Any) -> None:
            follower.validate_if_due(state.global_step)

    optimizer = build_optimizer(experiment.optimizer, prepared.model)
    trainer = prepared.trainer(
        model=prepared.model,
        train_dataset=datasets.Dataset.from_list(prepared.rows),
        processing_class=setting.tokenizer,
        callbacks=[Callback()],
        optimizers=(optimizer, experiment.schedule.build(optimizer, experiment.trainer.max_steps)),
        **prepared.options,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    if follower.step < experiment.trainer.max_steps:
        raise AblateError(f"TRL ended after {follower.step} of {experiment.trainer.max_steps} updates.")
