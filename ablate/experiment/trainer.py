"""The fields of `trainer`: length, batches, precision and devices, and the measurements in training."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ablate.config.base import Config, Names
from ablate.config.bounds import MOST_BATCH, MOST_ITEMS, MOST_LOADERS, MOST_PROCESSES, MOST_STEPS
from ablate.config.errors import Problem, did_you_mean
from ablate.diagnostics.measures import measurements
from ablate.norms.placement import Placement

ALL = "all"
POINTS = 50
"""Maximum points of a curve if the interval is chosen automatically."""
OVERHEAD = 0.25
"""The smallest relative cost of a pass over a part of a batch: small models are not limited by arithmetic."""
GRADIENTS = 0.03
"""Cost of computing the norms of existing gradients, in training steps."""


class DiagnoseConfig(Config):
    """Measurements on the layers during training. They do not change any number of the training."""

    what: Names = ()
    """Any of angular, pruning, gradients, jacobian, variance and streams, or all that the model can have. Empty: no
    measurements."""
    interval: int | None = Field(None, gt=0, le=MOST_STEPS)
    """Updates between two measurements. None: chosen for each measurement so that it stays within its part of `share`,
    with at most fifty in a run; at the start, at the end and between, or only at the end."""
    share: float = Field(0.01, gt=0, le=1)
    """Share of the training time to spend on measurements if `interval` is None."""
    tokens: int = Field(512, gt=0, le=MOST_ITEMS)
    """Tokens or images of each measurement, from the start of the validation set. Gradients are the update's own."""

    @property
    def names(self) -> tuple[str, ...]:
        """The measurements, in order; empty if there are none. Of `all`, the model may not have some."""
        return tuple(name for name in _list_names() if name in self.what or ALL in self.what)

    def every(self, names: Collection[str], updates: int, layers: int, part: float) -> dict[str, int]:
        """Return, for each of the measurements `names`, the number of updates between two of it in a run of `updates`,
        with a model of so many layers and `part` of a batch; more than `updates` means only at the end."""
        if self.interval is not None:
            return dict.fromkeys(names, self.interval)
        found = {}
        for name in names:
            cost = GRADIENTS if name == "gradients" else measurements[name].cost(layers) * max(part, OVERHEAD)
            points = math.floor(self.share / len(names) * updates / cost)
            found[name] = updates + 1 if points < 2 else max(1, -(-updates // min(max(1, points - 2), POINTS)))
        return found

    def validate_model(self, keeps_shape: bool, placement: Placement) -> list[Problem]:
        """Return the problems of the measurements that are named with a model: `Measurement.find_obstacle`."""
        obstacles = {name: measurements[name].find_obstacle(keeps_shape, placement) for name in _list_names()}
        fitting = ", ".join(name for name, reason in obstacles.items() if not reason)
        return [
            Problem("what", f"{name} cannot be measured of this model: {reason}. Accepted: {ALL}, {fitting}", self.what)
            for name, reason in obstacles.items()
            if reason and name in self.what
        ]

    def validate(self, fsdp: bool) -> list[Problem]:  # type: ignore[override]
        """Return the problems. With sharded models, gradients cannot be computed at arbitrary times."""
        known = [ALL, *_list_names()]
        problems = []
        for name in (name for name in self.what if name not in known):
            why = (
                "too expensive in training; ablate diagnose takes it" if name in measurements else "unknown measurement"
            )
            problems.append(Problem("what", f"{why}. Accepted: {', '.join(known)}.{did_you_mean(name, known)}", name))
        if fsdp and "jacobian" in self.names:
            fitting = ", ".join(name for name in _list_names() if name != "jacobian")
            text = f"jacobian needs whole weights: trainer.strategy=ddp, or {fitting}"
            problems.append(Problem("what", text, self.what))
        return problems


def _list_names() -> list[str]:
    """Return the measurements that can be taken in training."""
    return [name for name, measurement in measurements.items() if measurement.during_training]


MOST_WORKERS = 16
"""Maximum data-loading processes of a rank if their number is chosen automatically."""


class Named(Config):
    """A class of Lightning or of a plugin; further keys are its arguments."""

    model_config = ConfigDict(extra="allow")

    kind: str = Field(min_length=1)
    """Its name in Lightning, such as LearningRateMonitor, or FILE.CLASS of a plugin FILE.py."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the class."""
        return dict(self.model_extra or {})


def _list_named(value: Any) -> Any:
    """Return the items of a list of classes, where names stand without brackets: a, or a,b."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(","))
    if isinstance(value, Mapping):
        text = "must be a list of names or mappings, such as {example}"
        raise PydanticCustomError("named_type", text, {"example": "[NAME, {kind: NAME, ARGUMENT: VALUE}]"})
    return value


_LIST = BeforeValidator(_list_named, json_schema_input_type=str | tuple[str | Named, ...])


_SHORT = {"bf16": "bf16-mixed", "bfloat16": "bf16-mixed", "32": "32-true", "fp32": "32-true", "float32": "32-true"}
"""Short names of precisions, in the meaning that Lightning gives them."""
_PRECISION = BeforeValidator(
    lambda value: _SHORT.get(str(value), value),
    json_schema_input_type=Literal["bf16", "32", "auto", "32-true", "bf16-mixed", "bf16-true"] | int,
)


class FsdpConfig(Config):
    """How trainer.strategy=fsdp shares a model."""

    shard: int | None = Field(None, gt=1, le=MOST_PROCESSES)
    """Number of neighbouring data-parallel processes that share one copy of the model, such as those of a machine; the
    others have further copies, and gradients are summed over these once per update. None: all share one."""


class TrainerConfig(Config):
    """Length, batches, precision and devices of training. Names are Lightning's if it has one."""

    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {"max_steps": ("max_tokens",), "max_tokens": ("max_steps",)}
    max_steps: int = Field(300, gt=0, le=MOST_STEPS)
    """Optimizer updates."""
    max_tokens: int | None = Field(None, gt=0, le=MOST_ITEMS)
    """Instead of `max_steps`, tokens to train on: as many updates as have no more than these, so that up to one batch
    of them is left over. Padding counts. None: `max_steps`."""
    batch_size: int = Field(16, gt=0, le=MOST_BATCH)
    """Sequences or images in one update, over all devices and accumulated batches."""
    accumulate: int = Field(1, gt=0, le=MOST_BATCH)
    """Batches whose gradients are accumulated into one update of `batch_size`."""
    gradient_clip_val: float | None = Field(None, gt=0)
    """Largest norm of the whole gradient. None: no clipping, the papers' setting."""
    val_check_interval: int | None = Field(None, gt=0, le=MOST_STEPS)
    """Updates between two validations; there is always one after the last update. None: up to six in a run, depending
    on `val_samples`."""
    val_samples: Annotated[int, Field(gt=0, le=MOST_ITEMS)] | Literal["auto", "all"] = "auto"
    """Sequences or images of each validation, evenly spread over each validation set. all: the whole set. auto: as many
    as cost a tenth of training, counted in forward passes, and at least 16,384 tokens or 256 images; in a sweep the
    number of its smallest run, the same for all arms. If data.val_tokens is set, all of these."""
    log_every_n_steps: int = Field(10, gt=0, le=MOST_STEPS)
    """Updates between two points of the training curves, and between two checks for divergence."""
    diverge_factor: float = Field(3.0, gt=1)
    """A training loss that is not finite, or above this multiple of the uniform distribution's loss, ends the run as
    diverged."""
    precision: Annotated[Literal["auto", "32-true", "bf16-mixed", "bf16-true"], _PRECISION] = "auto"
    """Arithmetic of the model; the loss is always computed in float32. bf16-mixed: bfloat16 autocast; bf16-true:
    weights and moments are bfloat16 as well. auto: autocast if it is faster. bf16 and 32 are short for bf16-mixed and
    32-true."""
    compile: Literal["auto"] | bool = "auto"
    """Whether to compile layers, and head with loss, with torch.compile. auto: on a GPU, in a run of 2,000 updates or
    more."""
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """How the processes of a group share the training. ddp: each has the whole model and a part of each batch; fsdp: a
    shard of every weight, gradient and moment too. auto: ddp. It has no effect for one process."""
    devices: Annotated[int, Field(gt=0, le=MOST_PROCESSES)] | Literal["auto"] = "auto"
    """Processes on each machine, each with its own GPU if there are GPUs. auto: as many as torchrun started, one
    without torchrun."""
    nodes: int | None = Field(None, gt=0, le=MOST_PROCESSES)
    """Number of machines. None: torchrun's."""
    fsdp: FsdpConfig = FsdpConfig()
    tensor_parallel: int = Field(1, gt=0, le=MOST_PROCESSES)
    """With fsdp: number of neighbouring processes that split each matrix and share a part of the batch. 1: no tensor
    parallelism."""
    activation_checkpointing: bool = False
    """Whether each block stores only its input and recomputes the rest in the backward pass: less memory, a third more
    time."""
    cpu_offload: bool = False
    """With fsdp on several devices: whether the shards and the optimizer are in host memory."""
    gradient_sync: Literal["batch", "update"] = "batch"
    """With fsdp and accumulated batches. batch: the ranks sum the gradients after each batch and keep their shards.
    update: they sum once per update, with `accumulate` times less traffic and whole float32 gradients on each device.
    ddp always has whole gradients and sums once."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Decay of the exponential moving average of the weights; ConvNeXt's is 0.9999. Each validation then uses the
    weights (val/loss, ...) and with their average (val/ema/loss, ...). None: no average."""
    copy_to: str | None = Field(None, pattern="://")
    """Address of a folder, such as s3://bucket/runs, to which the last checkpoint of a completed run is copied, under
    the run's id; in a sweep, the checkpoint of the trial that represents each arm. None: no copy."""
    num_workers: Annotated[int, Field(ge=0, le=MOST_LOADERS)] | Literal["auto"] = "auto"
    """Data-loading processes of each rank. 0: the training process itself. auto: 0 on a CPU; for a GPU by the kind of
    data: for images that are decoded, one for each core but one and at most 16; otherwise 0."""
    diagnose: DiagnoseConfig = DiagnoseConfig()
    """Measurements on the layers during training."""
    callbacks: Annotated[tuple[Named, ...], _LIST] = ()
    """Callbacks of Lightning that are called in training: names of `lightning.pytorch.callbacks` or of a plugin's
    classes, or mappings with the name as kind and the arguments of the class. They may change what is trained: arms
    that differ in them are refused as for any other setting."""
    loggers: Annotated[tuple[Named, ...], _LIST] = ()
    """Loggers of Lightning beside MLflow, which has every metric anyway: names of `lightning.pytorch.loggers` or of a
    plugin's classes, or mappings with the name as kind and the arguments of the class."""
    profiler: Literal["simple", "advanced", "pytorch"] | None = None
    """Lightning's profiler, whose output is an artifact of the run. simple: the time of each hook; advanced: of each
    Python function; pytorch: of each operator, with a trace of some updates. The times that it reports are longer than
    without it. None: none."""

    def validate(self) -> list[Problem]:  # type: ignore[override]
        """Return the problems with combinations of these fields."""
        problems: list[Problem] = []
        if self.batch_size % self.accumulate:
            divisors = [n for n in range(1, self.batch_size + 1) if self.batch_size % n == 0]
            near = [n for n in divisors if n < self.accumulate][-1:] + [n for n in divisors if n > self.accumulate][:1]
            text = f"must divide trainer.batch_size ({self.batch_size}). Set it to {' or '.join(map(str, near))}"
            problems.append(Problem("accumulate", text, self.accumulate))
        if self.strategy != "fsdp":
            alone: dict[str, Any] = {"tensor_parallel": 1, "cpu_offload": False, "gradient_sync": "batch"}
            values = {name: getattr(self, name) for name in alone if getattr(self, name) != alone[name]}
            values |= {"fsdp.shard": self.fsdp.shard} if self.fsdp.shard else {}
            problems += [Problem(name, "needs trainer.strategy=fsdp", value) for name, value in values.items()]
        elif self.ema_decay is not None:
            problems.append(
                Problem("ema_decay", "needs whole weights on each device: trainer.strategy=ddp", self.ema_decay)
            )
        measured = self.diagnose.validate(fsdp=self.strategy == "fsdp")
        return problems + [problem.within("diagnose") for problem in measured]


HOW = tuple(
    f"trainer.{name}"
    for name in (
        "strategy", "devices", "nodes", "fsdp.shard", "tensor_parallel", "activation_checkpointing", "cpu_offload",
        "gradient_sync", "num_workers", "copy_to", "loggers", "profiler",
    )
)  # fmt: skip
"""Fields that change where a run is computed but not its result: a resumed run may change them."""
