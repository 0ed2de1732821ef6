"""How a plan trains: devices, strategy and what saves memory, from the configuration and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from ablate.config import Experiment, Tree, build, leaves
from ablate.errors import ConfigError, Problem
from ablate.registry import Config
from ablate.training.trainer import TrainerConfig


class Parallel(Config):
    """The part of `trainer` that is about devices, as a plan reads it."""

    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    """auto: one device, or ddp on several; fsdp shards parameters, gradients and optimizer over the devices."""
    devices: Literal["auto"] | Annotated[int, Field(gt=0)] = "auto"
    """GPUs of one node. auto: one."""
    nodes: int = Field(1, gt=0)
    """Machines."""
    activation_checkpointing: bool = False
    """Whether each block keeps its input alone and computes the rest again in the backward pass."""
    cpu_offload: bool = False
    """Whether the shards of fsdp, and the optimizer with them, are in the memory of the host."""


class _Planned(Config):
    trainer: Parallel = Parallel()


PLANNED = tuple(name for name in Parallel.model_fields if name not in TrainerConfig.model_fields)
"""What a plan can be asked and an experiment cannot yet."""


def split(tree: Mapping[str, Any]) -> tuple[Tree, Tree]:
    """Nested or dotted settings as (those of the experiment, those of the plan alone), both dotted."""
    flat = dict(leaves(tree))
    own = {path: value for path, value in flat.items() if path in {f"trainer.{name}" for name in PLANNED}}
    return {path: value for path, value in flat.items() if path not in own}, own


def parallel_of(experiment: Experiment, own: Mapping[str, Any]) -> Parallel:
    """The devices of `experiment`, or as `own` says where an experiment cannot. Raises ConfigError."""
    there = {
        f"trainer.{name}": getattr(experiment.trainer, name) for name in Parallel.model_fields if name not in PLANNED
    }
    planned: _Planned = build(_Planned, there, own, source="the plan")
    return planned.trainer


@dataclass(frozen=True)
class Setup:
    """One way to train a batch."""

    strategy: str
    """"one" (a single device), "ddp" or "fsdp"."""
    devices: int
    """Of all nodes."""
    precision: str
    """Lightning's: 32-true, bf16-mixed or bf16-true."""
    batch_size: int
    """Sequences or images of one update."""
    accumulate: int
    """Parts of each device's share of a batch that are computed one after another."""
    checkpointing: bool
    """Whether blocks are computed again in the backward pass."""
    offload: bool
    """Whether shards are in the host's memory."""

    @property
    def micro_batch(self) -> int:
        """Sequences or images that a device computes at once."""
        return self.batch_size // (self.devices * self.accumulate)

    def words(self, other: Setup) -> list[str]:
        """The `key=value` words that make `other` of this."""
        words = []
        if other.strategy != self.strategy:
            words.append(f"trainer.strategy={other.strategy}")
        if other.checkpointing != self.checkpointing:
            words.append(f"trainer.activation_checkpointing={str(other.checkpointing).lower()}")
        if other.offload != self.offload:
            words.append(f"trainer.cpu_offload={str(other.offload).lower()}")
        if other.accumulate != self.accumulate:
            words.append(f"trainer.accumulate={other.accumulate}")
        return words

    def alternatives(self) -> list[Setup]:
        """Setups that need less memory, by what they cost: smaller micro-batches, shards, recomputation, offloading."""
        share = self.batch_size // self.devices
        parts = [n for n in range(self.accumulate, share + 1) if share % n == 0]
        strategies = list(dict.fromkeys([self.strategy, "fsdp"]))
        return [
            replace(self, strategy=strategy, checkpointing=again, offload=offload, accumulate=n)
            for offload in ([True] if self.offload else [False, True])
            for again in ([True] if self.checkpointing else [False, True])
            for strategy in strategies
            if (strategy == "fsdp" and (self.devices > 1 or offload)) or (strategy == self.strategy and not offload)
            for n in parts
        ]


def setup_of(experiment: Experiment, parallel: Parallel, devices: int | None, nodes: int | None) -> Setup:
    """How `experiment` trains on `devices` GPUs of each of `nodes` machines. Raises ConfigError where the batch cannot
    be shared equally, or a setting makes no sense."""
    trainer = experiment.trainer
    own = parallel.devices if isinstance(parallel.devices, int) else 1
    world = (own if devices is None else devices) * (parallel.nodes if nodes is None else nodes)
    strategy: str = parallel.strategy
    if strategy == "auto":
        strategy = "ddp" if world > 1 else "one"
    problems = []
    parts = world * trainer.accumulate
    if trainer.batch_size % parts:
        below, above = trainer.batch_size // parts * parts, -(-trainer.batch_size // parts) * parts
        near = " or ".join(str(n) for n in (below, above) if n)
        text = (
            f"must be a multiple of {parts}: devices ({world}) x trainer.accumulate ({trainer.accumulate}); {near} is"
        )
        problems.append(Problem("trainer.batch_size", text, trainer.batch_size))
    if parallel.cpu_offload and strategy != "fsdp":
        problems.append(Problem("trainer.cpu_offload", "needs trainer.strategy=fsdp", True))
    if problems:
        raise ConfigError(problems, "the plan")
    precision = "bf16-mixed" if trainer.precision == "auto" else str(trainer.precision)
    return Setup(
        strategy, world, precision, trainer.batch_size, trainer.accumulate,
        parallel.activation_checkpointing, parallel.cpu_offload,
    )  # fmt: skip
