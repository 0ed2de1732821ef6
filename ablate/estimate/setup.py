"""Training setups: devices, strategy and memory-saving options, from the configuration and the command line."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ablate.config.errors import ConfigError, Problem
from ablate.estimate.flops import choose_precision
from ablate.experiment.tree import Experiment


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

    @property
    def micro_batch(self) -> int:
        """Sequences or images that a device computes at once."""
        return self.batch_size // (self.devices * self.accumulate)

    def words(self, other: Setup) -> list[str]:
        """Return the `key=value` words that change this setup to `other`."""
        words = []
        if other.strategy != self.strategy:
            words.append(f"trainer.strategy={other.strategy}")
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
        strategies = list(dict.fromkeys([self.strategy, *(["fsdp"] if self.shardable else [])]))
        return [
            replace(self, strategy=strategy, checkpointing=again, offload=offload, once=once, accumulate=n)
            for offload in ([True] if self.offload else [False, True])
            for once in ([True, False] if self.once else [False])
            for again in ([True] if self.checkpointing else [False, True])
            for strategy in strategies
            if (strategy == "fsdp" and self.devices > 1) or (strategy == self.strategy and not offload)
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
    if trainer.cpu_offload and world == 1:
        text = "needs several devices (--devices or trainer.devices): a single device has the whole model"
        problems.append(Problem("trainer.cpu_offload", text, True))
    if problems:
        raise ConfigError(problems, "the plan")
    return Setup(
        strategy, world, choose_precision(trainer), trainer.batch_size, trainer.accumulate,
        trainer.activation_checkpointing, trainer.cpu_offload, trainer.ema_decay is not None,
        strategy == "fsdp" and trainer.gradient_sync == "update", not experiment.model.of_library,
    )  # fmt: skip
