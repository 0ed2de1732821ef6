"""The memory of one device at its peak, from traced steps and a setup."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import ConfigError, Problem
from ablate.estimate.flops import choose_precision, count, find_slowdown
from ablate.estimate.inputs import build_skeleton
from ablate.estimate.tracing import LABELS, Step, trace
from ablate.estimate.updates import Update, measure_update
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.models.head import count_rows_at_once


@dataclass(frozen=True)
class Setup:
    """One way to train a batch."""

    strategy: str
    """"one" (a single device), "ddp" or "fsdp"."""
    devices: int
    """Devices of all nodes."""
    precision: str
    """Lightning's: 32-true, bf16-mixed or bf16-true."""
    batch_size: int
    """Sequences or images of one update."""
    accumulate: int
    """Parts of each device's share of a batch that are computed one after another."""
    checkpointing: bool
    """Whether blocks are computed again in the backward pass."""
    offload: bool
    """Whether shards are in host memory."""
    averaged: bool = False
    """Whether there is an average of the weights (trainer.ema_decay), in float32 on each device."""
    once: bool = False
    """Whether sharded gradients are summed once per update (trainer.gradient_sync), and whole until then."""

    shardable: bool = True
    """Whether the model can be sharded (trainer.strategy=fsdp)."""
    nodes: int = 1
    """Machines."""
    shard: int = 0
    """Devices that share one copy of a sharded model (trainer.fsdp.shard); 0: all."""

    @property
    def shards(self) -> int:
        """Devices that share one copy of the model."""
        return (self.shard or self.devices) if self.strategy == "fsdp" else 1

    @property
    def half(self) -> bool:
        """Whether weights and their states have two bytes each."""
        return self.precision == "bf16-true"

    @property
    def widths(self) -> tuple[int, int]:
        """Bytes of a gathered weight: of the layers, and of embedding and head."""
        return 4 if self.precision == "32-true" else 2, 2 if self.half else 4

    @property
    def micro_batch(self) -> int:
        """Sequences or images that a device computes at once."""
        return self.batch_size // (self.devices * self.accumulate)

    def words(self, other: Setup) -> list[str]:
        """Return the `key=value` words that change this setup to `other`."""
        words = []
        if other.strategy != self.strategy:
            words.append(f"trainer.strategy={other.strategy}")
        if other.shard != self.shard:
            words.append(f"trainer.fsdp.shard={other.shard or 'null'}")
        if other.checkpointing != self.checkpointing:
            words.append(f"trainer.activation_checkpointing={str(other.checkpointing).lower()}")
        if other.offload != self.offload:
            words.append(f"trainer.cpu_offload={str(other.offload).lower()}")
        if other.once != self.once:
            words.append(f"trainer.gradient_sync={'update' if other.once else 'batch'}")
        if other.accumulate != self.accumulate:
            words.append(f"trainer.accumulate={other.accumulate}")
        return words

    def alternatives(self) -> list[Setup]:
        """Return setups that need less memory, ordered by what they cost: smaller micro-batches, shards, recomputation,
        offloading."""
        share = self.batch_size // self.devices
        parts = [n for n in range(self.accumulate, share + 1) if share % n == 0]
        own = (self.strategy, self.shard)
        ways = list(dict.fromkeys([own, *([("fsdp", 0)] if self.shardable else [])]))
        return [
            replace(self, strategy=strategy, shard=shard, checkpointing=again, offload=offload, once=once, accumulate=n)
            for offload in ([True] if self.offload else [False, True])
            for once in ([True, False] if self.once else [False])
            for again in ([True] if self.checkpointing else [False, True])
            for strategy, shard in ways
            if (strategy == "fsdp" and self.devices > 1) or ((strategy, shard) == own and not offload)
            for n in parts
        ]


def resolve_setup(experiment: Experiment, devices: int | None = None, nodes: int | None = None) -> Setup:
    """Return the setup of `experiment` on `devices` GPUs of each of `nodes` machines. Raises ConfigError if the batch
    cannot be divided equally, or a setting is invalid or not supported by the plan."""
    trainer = experiment.trainer
    own = 1 if trainer.devices == "auto" else trainer.devices
    world = (devices or own) * (nodes or trainer.nodes or 1)
    strategy = "one" if world == 1 else "ddp" if trainer.strategy == "auto" else trainer.strategy
    problems = []
    parts = world * trainer.accumulate
    if trainer.tensor_parallel > 1:
        text = "the plan does not support tensor parallelism: remove it (1)"
        problems.append(Problem("trainer.tensor_parallel", text, trainer.tensor_parallel))
    elif trainer.batch_size % parts:
        below, above = trainer.batch_size // parts * parts, -(-trainer.batch_size // parts) * parts
        near = " or ".join(str(n) for n in (below, above) if n)
        text = (
            f"must be a multiple of {parts}: devices ({world}) x trainer.accumulate ({trainer.accumulate}); {near} is"
        )
        problems.append(Problem("trainer.batch_size", text, trainer.batch_size))
    shard = trainer.fsdp.shard if strategy == "fsdp" and trainer.fsdp.shard != world else None
    if world % (shard or 1):
        problems.append(Problem("trainer.fsdp.shard", f"must divide the {world} devices", shard))
    if trainer.cpu_offload and world == 1:
        text = "needs several devices (--devices or trainer.devices): a single device has the whole model"
        problems.append(Problem("trainer.cpu_offload", text, True))
    if problems:
        raise ConfigError(problems, "the plan")
    return Setup(
        strategy, world, choose_precision(trainer), trainer.batch_size, trainer.accumulate,
        trainer.activation_checkpointing, trainer.cpu_offload, trainer.ema_decay is not None,
        strategy == "fsdp" and trainer.gradient_sync == "update", not experiment.model.of_library,
        nodes or trainer.nodes or 1, shard or 0,
    )  # fmt: skip


PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "temporary")
RESERVE, FRAGMENTED = 1.0 * 2**30, 0.03
"""The reserve: the CUDA context with NCCL, and a share that the allocator loses to fragmentation."""
WORKSPACE = 32 * 2**20
"""The workspace of cuBLAS on Hopper; it is 8 MiB on older GPUs."""
ORTHOGONALISED = {False: 3.0, True: 5.0}
"""Whether weights have two bytes -> what torch's and timm's Muon need for each byte of a square matrix: its update, and
four of its size in bfloat16."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one device at its peak."""

    parts: Mapping[str, float]
    """By the names in `PARTS`."""
    host: float
    """Bytes of the host's memory for each device, with offloading."""

    @property
    def peak(self) -> float:
        """The sum of all parts."""
        return sum(self.parts.values())

    def fits(self, capacity: float) -> bool:
        """Return whether it fits a device of `capacity` bytes, including the reserve."""
        return self.peak <= subtract_reserve(capacity)

    @property
    def needs(self) -> float:
        """Bytes of a device that a process needs, including the reserve."""
        return self.peak / (1 - FRAGMENTED) + RESERVE

    def sharing(self, capacity: float) -> int:
        """Return the number of such processes that fit on a device together."""
        return int(capacity // self.needs)


def subtract_reserve(capacity: float) -> float:
    """Return the memory of a device that tensors can use."""
    return (capacity - RESERVE) * (1 - FRAGMENTED)


@dataclass(frozen=True)
class _Course:
    """A step for any batch: what each event adds, `fixed + batch * each`."""

    fixed: NDArray[np.float64]
    each: NDArray[np.float64]
    label: NDArray[np.int64]
    backward: int


class Meter:
    """Measures the memory of an experiment's model and optimizer in any setup, whatever setup the experiment has; steps
    are traced when a setup first needs them."""

    def __init__(self, experiment: Experiment, classes: int, shape: tuple[int, ...], gpu: bool = True) -> None:
        self.model, self.optimizer = build_skeleton(experiment, classes, shape), experiment.optimizer
        self.experiment, self.task = experiment, experiment.task
        self.shape, self.classes, self.gpu = shape, classes, gpu
        self.counts = count(self.model, shape, self.task.count_passes(experiment.model, shape))
        self.positions = shape[0] if self.model.config.per_token else 0
        """Positions of one input with logits, which are made in parts if there are many."""
        self._prime = _find_prime(self.model, shape, classes, self.positions)
        self._updates: dict[bool, Update] = {}
        self._courses: dict[tuple[str, bool, bool], _Course] = {}

    @functools.cached_property
    def slowdown(self) -> float:
        """Factor of activation checkpointing on the FLOPs of a step."""
        return find_slowdown(self.model, self.counts, self.experiment, (self.classes, self.shape))

    def memory(self, setup: Setup) -> Memory:
        """Return the memory of the most loaded device in a steady state: after the first update."""
        sharded = setup.shards > 1
        in_parts = setup.micro_batch * self.positions > count_rows_at_once(self.classes)
        course = self._course(setup.precision, setup.checkpointing, in_parts)
        change = course.fixed + course.each * setup.micro_batch
        streams = {name: np.cumsum(np.where(course.label == i, change, 0)) for i, name in enumerate(LABELS)}
        own, still = self._own(setup), self._own(setup, frozen=True)
        offloaded, head = own if setup.offload else 0.0, self.counts.head or self.counts.embedding
        gradients = self._gradients(setup, course, change, own)
        temporary = streams["temporary"] + (WORKSPACE if self.gpu else 0)
        if sharded:
            # FSDP2 has these whole: the current layer, as it was gathered and as its parameters, and the next one,
            # which is fetched ahead; its gradients, and the float32 copies of its own and of the last layer's that are
            # being reduced; embedding and head, from the first to the last.
            width, rest = setup.widths
            whole = self.counts.block * (3 * width + width + 2 * 4) + (self.counts.embedding + self.counts.head) * rest
            temporary = temporary + whole
        courses = {
            # with FSDP2 only the head has autocast's copy: it gathers the layers in bfloat16
            "parameters": streams["casts"] * (head / (self.counts.rest + head) if sharded else 1)
            + own
            - offloaded
            + (0 if setup.offload else still)
            + (4 * self.counts.total if setup.averaged else 0),
            "gradients": gradients,
            "optimizer": np.full(len(change), self.update(setup.half).states * (own - offloaded)),
            "activations": streams["activations"],
            "logits": streams["logits"],
            "temporary": temporary,
        }
        at_update = {name: values[-1] for name, values in courses.items()} | {"temporary": self._turns(setup)}
        courses = {name: np.append(values, at_update[name]) for name, values in courses.items()}
        moment = int(np.argmax(sum(courses.values())))
        host = (2 + self.update(setup.half).states) * offloaded + (still if setup.offload else 0)
        return Memory({name: float(courses[name][moment]) for name in PARTS}, host)

    def _turns(self, setup: Setup) -> float:
        """Return the bytes of whole matrices while the ranks take turns with them (`MuonWithAdamW`). One matrix is
        orthogonalised: weight, gradient and states. The next is gathered: the same, and the buffers in which it is sent
        and received. The one before is sent back: the buffers of weight and states, for each copy of the model."""
        update = self.update(setup.half)
        kinds = 2 + update.matrix_states
        copies = setup.devices // setup.shards
        exchanged = 4 * kinds + 2 * copies * (kinds - 1) if setup.shards > 1 else 0
        return update.largest * (exchanged + ORTHOGONALISED[setup.half]) + (WORKSPACE if self.gpu else 0)

    def states(self, setup: Setup) -> float:
        """Return the bytes of parameters, gradients and optimizer, which are all allocated when a forward pass ends."""
        own, still = self._own(setup), self._own(setup, frozen=True)
        copies = 2 + (setup.strategy == "ddp" and setup.accumulate > 1) + self.update(setup.half).states
        kept = 0 if setup.offload else copies * own + still
        return kept + max(0.0, self._whole_gradients(setup) - (0 if setup.offload else own))

    def update(self, half: bool) -> Update:
        """Return what an update needs, with weights of two bytes or of four."""
        if half not in self._updates:
            self._updates[half] = measure_update(self.model, self.optimizer, half)
        return self._updates[half]

    def _own(self, setup: Setup, frozen: bool = False) -> float:
        """Return the bytes of the parameters of one device that the optimizer updates; or of the others."""
        weight = 2 if setup.half else 4
        count = self.counts.frozen if frozen else self.counts.total - self.counts.frozen
        return count * weight / setup.shards

    def checkpoint(self, precision: str, averaged: bool) -> float:
        """Return the bytes of a checkpoint: weights, their average, and the optimizer's state."""
        half, total = precision == "bf16-true", self.counts.total
        weights = total + (total - self.counts.frozen) * self.update(half).states
        return (2 if half else 4) * weights + (4 * total if averaged else 0)

    def _gradients(self, setup: Setup, course: _Course, change: NDArray[np.float64], own: float) -> NDArray[np.float64]:
        """Lightning frees the last gradients between forward and backward pass. Where several batches are accumulated
        they stay, and each new one is there beside them until it is added. With ddp they are views of the buckets that
        are sent, which always stay, and into which accumulated ones are copied in the end. Offloaded shards are not on
        the device."""
        if whole := self._whole_gradients(setup):
            return np.full(len(change), whole)
        if setup.offload:
            return np.zeros(len(change))
        new = np.where(course.label == LABELS.index("gradients"), change, 0)
        new = new * (own / new.sum())
        if setup.strategy == "ddp":
            return (2 if setup.accumulate > 1 else 1) * own + new
        if setup.accumulate > 1:
            return own + new
        courses = np.cumsum(new)
        courses[: course.backward] += own
        return courses

    def _whole_gradients(self, setup: Setup) -> float:
        """Return the bytes of the gradients that each device accumulates by itself, in float32, until the ranks sum
        them once per update, when shards take their place layer by layer; 0 where each batch is summed."""
        return 4 * (self.counts.total - self.counts.frozen) if setup.once and setup.accumulate > 1 else 0

    def _course(self, precision: str, checkpointing: bool, in_parts: bool) -> _Course:
        key = (precision, checkpointing, in_parts)
        if key not in self._courses:
            step = Step(self.task, self.shape, self.classes, precision, checkpointing, in_parts, self.gpu)
            timeline = trace(self.model, step, self._prime)
            grows = timeline.bytes % self._prime == 0
            each, fixed = np.where(grows, timeline.bytes / self._prime, 0), np.where(grows, 0, timeline.bytes)
            self._courses[key] = _Course(fixed, each, timeline.label, timeline.backward)
        return self._courses[key]


def _find_prime(model: Model, shape: tuple[int, ...], classes: int, positions: int) -> int:
    """Return a batch to trace a step with, large enough for logits to be made in parts. The size of each tensor is a
    product of the batch and sizes of the model; so a prime that divides no size of the model divides just the sizes
    that grow with the batch."""
    sizes = [*shape, *(p.numel() for p in model.parameters())]
    least = 2 * count_rows_at_once(classes) // positions if positions else 0
    for number in itertools.count(max(101, least)):
        if all(number % other for other in range(2, math.isqrt(number) + 1)) and all(size % number for size in sizes):
            break
    return number
