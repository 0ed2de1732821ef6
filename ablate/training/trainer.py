"""The Lightning Trainer of an experiment, and the checks that the ranks fit its trainer part."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.errors import ConfigError, Problem
from ablate.distributed import ranks
from ablate.experiment.trainer import TrainerConfig
from ablate.experiment.tree import Experiment

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer
    from lightning.pytorch.loggers import Logger
    from lightning.pytorch.strategies import Strategy


def check_ranks(config: TrainerConfig, source: str = "the configuration") -> None:
    """Raise ConfigError if the present ranks cannot train as `config` says."""
    import torch

    world, local = ranks.world_size(), ranks.local_size()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else local
    problems = []
    if config.devices not in ("auto", local):
        problems.append(Problem("trainer.devices", _describe_launch(config, local, "on this machine"), config.devices))
    elif config.nodes not in (None, world // local):
        problems.append(Problem("trainer.nodes", _describe_launch(config, world // local, "of machines"), config.nodes))
    elif gpus < local:
        problems.append(Problem("", f"{local} ranks on {gpus} GPUs: start torchrun with --nproc-per-node {gpus}"))
    if world == 1 and config.cpu_offload:
        text = "needs several processes: a single process has the whole model on its device. Set it to false, or"
        problems.append(Problem("trainer.cpu_offload", f"{text} trainer.devices=2 or more", True))
    if problems or (problems := _validate_batch(config, world)):
        raise ConfigError(problems, source)


def _validate_batch(config: TrainerConfig, world: int) -> list[Problem]:
    """Return the reason that so many ranks cannot share a batch equally."""
    if world % config.tensor_parallel:
        return [Problem("trainer.tensor_parallel", f"must divide the {world} ranks", config.tensor_parallel)]
    copies = world // config.tensor_parallel  # of the data
    if config.strategy == "fsdp" and copies % (config.fsdp.shard or 1):
        text = f"must divide {copies}, the ranks" + (" of each tensor_parallel" if config.tensor_parallel > 1 else "")
        return [Problem("trainer.fsdp.shard", text, config.fsdp.shard)]
    if config.batch_size % (parts := world // config.tensor_parallel * config.accumulate):
        near = [n for n in (config.batch_size // parts * parts, -(-config.batch_size // parts) * parts) if n]
        message = f"must be a multiple of {parts}: {world} ranks, trainer.accumulate {config.accumulate}"
        if config.tensor_parallel > 1:
            message += f", trainer.tensor_parallel {config.tensor_parallel}"
        message += f". Set it to {' or '.join(map(str, near))}"
        return [Problem("trainer.batch_size", message, config.batch_size)]
    return []


def _describe_launch(config: TrainerConfig, there: int, what: str) -> str:
    """Return the torchrun command if the processes that `config` requires are not running."""
    devices = ranks.local_size() if config.devices == "auto" else config.devices
    nodes = f"--nnodes {config.nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500" if (config.nodes or 1) > 1 else ""
    start = f"torchrun {nodes or '--standalone'} --nproc-per-node {devices} -m ablate ..."
    return f"the processes {what} are {there}. Start it with: {start}"


def advise_less_memory(config: TrainerConfig) -> str:
    """Return a sentence on the micro-batch, and settings that need less memory, the cheapest first."""
    at_once = config.batch_size * config.tensor_parallel // (ranks.world_size() * config.accumulate)
    parts = next((config.accumulate * n for n in range(2, at_once + 1) if at_once % n == 0), None)
    ways = [f"trainer.accumulate={parts} ({at_once * config.accumulate // parts} at once)"] if parts else []
    if not config.activation_checkpointing:
        ways.append("trainer.activation_checkpointing=true")
    if config.strategy != "fsdp" or ranks.world_size() == 1:
        ways.append("trainer.strategy=fsdp" + ("" if ranks.world_size() > 1 else " on several devices"))
    elif not config.cpu_offload:
        ways.append("trainer.cpu_offload=true")
    ways += ["trainer.precision=bf16-true"] if config.precision != "bf16-true" else []
    return (
        f"{at_once} samples of the batch are computed at once on each device. Settings that need less memory: "
        f"{', '.join(ways)}."
    )


def count_launches(config: TrainerConfig) -> int:
    """Return the number of processes to start on this machine for `config`; 0 if they are running, or none are
    requested. Raises ConfigError if the machine has GPUs, but fewer."""
    import torch

    if config.devices in ("auto", 1) or ranks.is_grouped() or (config.nodes or 1) > 1:
        return 0
    devices = int(config.devices)
    there = torch.cuda.device_count() if torch.cuda.is_available() else devices
    if there < devices:
        problem = Problem("trainer.devices", f"this machine has {there} GPUs: set it to {there} at most", devices)
        raise ConfigError([problem])
    if problems := _validate_batch(config, devices):
        raise ConfigError(problems)
    return devices


PROFILE = "profile"
"""The folder of the output of `trainer.profiler`, in that of the run and among its artifacts."""
BARE: dict[str, Any] = {
    "logger": False,
    "num_sanity_val_steps": 0,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "use_distributed_sampler": False,
}
"""Arguments of a Lightning Trainer without logger, checkpoints, bars and samplers of its own."""


def quieten() -> None:
    """Silence what Lightning would tell of every run again."""
    # messages on hardware and data loaders, which would be repeated for every trial of a sweep; the last logger's are
    # on sums over two dimensions of a mesh, of which only the scalar norm of the gradient is one
    for logger in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "torch.distributed.tensor"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    warnings.filterwarnings("ignore", message=r".*(does not have many workers|TF32|isinstance\(treespec).*")


def build_trainer(
    experiment: Experiment,
    precision: str,
    callbacks: list[Callback],
    folder: Path,
    strategy: Strategy | None = None,
    loggers: Sequence[Logger] = (),
    **more: Any,
) -> Trainer:
    """Return the Lightning Trainer: on one device, or by `strategy` on one for each rank of a group; only `callbacks`
    handle metrics, checkpoints and progress, and `loggers` receive what they log. `more`: its further arguments."""
    quieten()
    from lightning.pytorch import Trainer

    config, profiler = experiment.trainer, None
    if config.profiler:
        from lightning.pytorch import profilers

        name = {"simple": "SimpleProfiler", "advanced": "AdvancedProfiler", "pytorch": "PyTorchProfiler"}
        profiler = getattr(profilers, name[config.profiler])(dirpath=folder / PROFILE, filename=config.profiler)
    settings: dict[str, Any] = {
        "max_steps": config.max_steps,
        "max_epochs": -1,
        "accelerator": "auto",
        "devices": ranks.local_size(),
        "precision": precision,
        "accumulate_grad_batches": config.accumulate,
        "gradient_clip_val": config.gradient_clip_val,
        "val_check_interval": experiment.validation.interval * config.accumulate,
        "check_val_every_n_epoch": None,
        "log_every_n_steps": config.log_every_n_steps,
        "profiler": profiler,
    }
    if strategy:
        settings |= {"num_nodes": ranks.world_size() // ranks.local_size(), "strategy": strategy}
    bare = {**BARE, "logger": list(loggers), **more}
    return Trainer(**settings, callbacks=callbacks, default_root_dir=folder, **bare)
