"""The fields of `trainer`: how long, in what batches, in what precision, on which devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ablate.config.base import Config, Former
from ablate.config.bounds import MOST_BATCH, MOST_ITEMS, MOST_LOADERS, MOST_PROCESSES, MOST_STEPS
from ablate.config.errors import Problem
from ablate.config.registry import list_kinds
from ablate.experiment import observers  # as a module: fields have the names of its registries
from ablate.experiment.diagnose import DiagnoseConfig

MOST_WORKERS = 16
"""Processes that load the data of a rank, where their number is chosen."""


class TrainerConfig(Config):
    """How long, in what batches and in what precision to train. Names are Lightning's where it has one."""

    former: ClassVar[Mapping[str, Former]] = {"val_samples": Former("all", until=2)}

    max_steps: int = Field(300, gt=0, le=MOST_STEPS)
    """Optimizer updates."""
    batch_size: int = Field(16, gt=0, le=MOST_BATCH)
    """Sequences or images in one update, over all devices and accumulated batches."""
    accumulate: int = Field(1, gt=0, le=MOST_BATCH)
    """Batches whose gradients are accumulated into one update of `batch_size`."""
    gradient_clip_val: float | None = Field(None, gt=0)
    """Largest norm of the whole gradient. None: no clipping, the papers' setting."""
    val_check_interval: int | None = Field(None, gt=0, le=MOST_STEPS)
    """Updates between two validations; there is always one after the last update. None: up to six in a run, as many as
    `val_samples` leaves room for."""
    val_samples: Annotated[int, Field(gt=0, le=MOST_ITEMS)] | Literal["auto", "all"] = "auto"
    """Sequences or images of each validation, evenly spread over the validation set; over each where there are several.
    all: the whole set. auto: as many as cost a tenth of training, by forward passes, and at least 16,384 tokens or 256
    images; in a sweep as many as its smallest run takes, the same for all arms. Where data.val_tokens is set: these."""
    log_every_n_steps: int = Field(10, gt=0, le=MOST_STEPS)
    """Updates between two points of the training curves, and two looks for divergence."""
    diverge_factor: float = Field(3.0, gt=1)
    """A training loss above this many times the loss of guessing evenly, or not finite, ends the run as diverged."""
    precision: Literal["auto", "32-true", "bf16-mixed", "bf16-true"] = "auto"
    """Arithmetic of the model; the loss is always computed in float32. bf16-mixed: bfloat16 autocast; bf16-true:
    weights and moments are bfloat16 as well. auto: autocast where it pays."""
    compile: Literal["auto", "reduce-overhead"] | bool = "auto"
    """Whether torch.compile makes one program of model and loss. auto: where it repays the time that it takes.
    reduce-overhead: with CUDA graphs as well, for models so small that a GPU waits for what is to be launched; on one
    device."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How the processes of a group share the training. ddp: each has the whole model and a part of each batch; fsdp:
    a shard of every weight, gradient and moment too. auto: ddp. One process has nothing to share."""
    devices: Annotated[int, Field(gt=0, le=MOST_PROCESSES)] | Literal["auto"] = "auto"
    """Processes on each machine, each with a GPU of its own where there are GPUs. auto: as many as there are, one
    without torchrun."""
    nodes: int | None = Field(None, gt=0, le=MOST_PROCESSES)
    """Machines. None: as many as torchrun says."""
    tensor_parallel: int = Field(1, gt=0, le=MOST_PROCESSES)
    """With fsdp: neighbouring processes that share each matrix, and a part of the batch. 1: none do."""
    activation_checkpointing: bool = False
    """Whether each block keeps its input alone and computes the rest again in the backward pass: less memory, a third
    more time."""
    cpu_offload: bool = False
    """With fsdp on several devices: whether the shards, and the optimizer with them, are in the memory of the host."""
    gradient_sync: Literal["batch", "update"] = "batch"
    """With fsdp and accumulated batches: after each of them the ranks sum the gradients and keep their shards, or once
    per update: `accumulate` times less traffic, and all gradients whole on each device, in float32. ddp has them whole
    anyway, and sums once."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Decay of the exponential moving average of the weights, ConvNeXt's is 0.9999. Each validation is then made with
    the weights (val/loss, ...) and with their average (val/ema/loss, ...). None: no average."""
    copy_to: str | None = Field(None, pattern="://")
    """Address of a folder, such as s3://bucket/runs, to which the last checkpoint of a completed run is copied, by the
    run's id; of a sweep that of the trial that stands for each arm. None: it stays in the store alone."""
    num_workers: Annotated[int, Field(ge=0, le=MOST_LOADERS)] | Literal["auto"] = "auto"
    """Processes that load the data, of each rank. 0: the training process itself. auto: on a CPU, which computes
    already, none; for a GPU by the kind of data: of images that are decoded one for each core but one and at most 16,
    of text that is tokenised as it is read one, of what is at hand none."""
    diagnose: DiagnoseConfig = DiagnoseConfig()
    """What is measured on the layers in training."""
    callbacks: Annotated[
        tuple[Annotated[observers.CallbackConfig, observers.callbacks], ...], BeforeValidator(list_kinds)
    ] = ()
    """Callbacks of Lightning that are called in training: names, or mappings with a kind and its fields. Observers
    change no number, and arms may differ in them; of a plugin also such as change training."""
    loggers: Annotated[
        tuple[Annotated[observers.LoggerConfig, observers.loggers], ...], BeforeValidator(list_kinds)
    ] = ()
    """Logs beside MLflow, which has every metric anyway: names, or mappings with a kind and its fields."""
    profiler: Literal["simple", "advanced", "pytorch"] | None = None
    """Lightning's profiler, whose output is an artifact of the run. simple: the time of each hook; advanced: of each
    Python function; pytorch: of each operator, with a trace of some updates. The times that it reports are longer than
    without it. None: none."""

    @property
    def changing_callbacks(self) -> tuple[observers.CallbackConfig, ...]:
        """Those of `callbacks` that change training: a setting like any other."""
        return tuple(callback for callback in self.callbacks if callback.changes_training)

    def list_missing(self) -> list[Problem]:
        """Return why callbacks and loggers cannot run on this machine, such as missing libraries. Paths are those of
        the experiment."""
        parts: Mapping[str, tuple[observers.CallbackConfig | observers.LoggerConfig, ...]]
        parts = {"callbacks": self.callbacks, "loggers": self.loggers}
        return [
            problem.within(f"trainer.{part}.{number}")
            for part, kinds in parts.items()
            for number, kind in enumerate(kinds)
            for problem in kind.validate()
        ]

    def validate(self) -> list[Problem]:  # type: ignore[override]
        """Return what is wrong between these fields."""
        problems: list[Problem] = []
        if self.batch_size % self.accumulate:
            divisors = [n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0]
            near = [n for n in divisors if n < self.accumulate][-1:] + [n for n in divisors if n > self.accumulate][:1]
            text = f"must divide trainer.batch_size ({self.batch_size}). Take {' or '.join(map(str, near))}"
            problems.append(Problem("accumulate", text, self.accumulate))
        if self.compile == "reduce-overhead" and self.accumulate > 1:  # a graph writes its gradients to one place
            text = "needs trainer.accumulate=1: a CUDA graph writes over the gradients that are being accumulated"
            problems.append(Problem("compile", text, self.compile))
        if self.strategy != "fsdp":
            alone: dict[str, Any] = {"tensor_parallel": 1, "cpu_offload": False, "gradient_sync": "batch"}
            values = {name: getattr(self, name) for name in alone if getattr(self, name) != alone[name]}
            problems += [Problem(name, "needs trainer.strategy=fsdp", value) for name, value in values.items()]
        elif self.ema_decay is not None:
            problems.append(
                Problem("ema_decay", "needs whole weights on each device: trainer.strategy=ddp", self.ema_decay)
            )
        kinds = [log.kind for log in self.loggers]
        if twice := [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]:
            problems.append(Problem("loggers", f"{twice[0]} stands there twice; each log is written once", kinds))
        measured = self.diagnose.validate(fsdp=self.strategy == "fsdp")
        return problems + [problem.within("diagnose") for problem in measured]


HOW = tuple(
    f"trainer.{name}"
    for name in (
        "strategy", "devices", "nodes", "tensor_parallel", "activation_checkpointing", "cpu_offload", "gradient_sync",
        "num_workers", "copy_to", "loggers", "profiler",
    )
)  # fmt: skip
"""Fields that change where a run is computed, or what looks at it, and not its numbers: it may go on with others."""
