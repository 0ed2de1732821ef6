"""The Trainer part of an experiment, and the Lightning Trainer that it builds."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ablate import ranks
from ablate.errors import ConfigError, Problem
from ablate.registry import Config

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer


class TrainerConfig(Config):
    """How long, in what batches and in what precision to train. Names are Lightning's where it has one."""

    max_steps: int = Field(300, gt=0)
    """Optimizer updates."""
    batch_size: int = Field(16, gt=0)
    """Sequences or images in one update, over all devices and accumulated batches."""
    accumulate: int = Field(1, gt=0)
    """Batches whose gradients are accumulated into one update of `batch_size`."""
    gradient_clip_val: float | None = Field(None, gt=0)
    """Largest norm of the whole gradient. None: no clipping, the papers' setting."""
    val_check_interval: int | None = Field(None, gt=0)
    """Updates between two validations; there is always one after the last update. None: six in a run."""
    log_every_n_steps: int = Field(10, gt=0)
    """Updates between two points of the training curves, and two looks for divergence."""
    diverge_factor: float = Field(3.0, gt=1)
    """A training loss above this many times the loss of guessing evenly, or not finite, ends the run as diverged."""
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    """Arithmetic of the model; the loss is always computed in float32. auto: bfloat16 autocast where it pays."""
    compile: Literal["auto"] | bool = "auto"
    """Whether torch.compile makes one program of model and loss. auto: where it repays the time that it takes."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Decay of the exponential moving average of the weights, ConvNeXt's is 0.9999. Each validation is then made with
    the weights (val/loss, ...) and with their average (val/ema/loss, ...). None: no average."""
    num_workers: int = Field(0, ge=0)
    """Processes that load the data. 0: the training process itself."""

    @property
    def validation_interval(self) -> int:
        """Updates between two validations, at most `max_steps`."""
        return min(self.val_check_interval or max(1, -(-self.max_steps // 6)), self.max_steps)


def quiet_lightning() -> None:
    """Silences Lightning's remarks on hardware and data loaders, which repeat for every trial of a sweep."""
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*")
    warnings.filterwarnings("ignore", message=r".*(does not have many workers|TF32|isinstance\(treespec).*")


def check_ranks(config: TrainerConfig, source: str = "the configuration") -> None:
    """Raises ConfigError where the batch, or the machine's GPUs, cannot be shared equally by the ranks of the group."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else ranks.local_size()
    if gpus < ranks.local_size():
        message = f"{ranks.local_size()} ranks on {gpus} GPUs: start torchrun with --nproc-per-node {gpus}"
        raise ConfigError([Problem("", message)], source)
    parts = ranks.world_size() * config.accumulate
    if config.batch_size % parts:
        message = f"must be a multiple of {parts}: {ranks.world_size()} ranks, trainer.accumulate {config.accumulate}"
        raise ConfigError([Problem("trainer.batch_size", message, config.batch_size)], source)


def _strategy() -> Any:
    """Data-parallel training over the ranks of a group."""
    from lightning.pytorch.strategies import DDPStrategy

    class Ranks(DDPStrategy):
        def save_checkpoint(self, *args: Any, **more: Any) -> None:  # a full disk stops all ranks, and none waits
            ranks.first(lambda: super(Ranks, self).save_checkpoint(*args, **more))

    # Where it looks for unused parameters, DDP keeps its first layout of the gradients in buckets. Otherwise it changes
    # that after the first update, and a run that goes on would add up more than two ranks in another order.
    return Ranks(find_unused_parameters=True)


def build_trainer(config: TrainerConfig, precision: str, callbacks: list[Callback], folder: Path) -> Trainer:
    """The Lightning Trainer: one device, or one for each rank of a group; our callbacks alone for metrics, checkpoints
    and progress."""
    quiet_lightning()
    from lightning.pytorch import Trainer

    settings: dict[str, Any] = {
        "max_steps": config.max_steps,
        "max_epochs": -1,
        "accelerator": "auto",
        "devices": ranks.local_size(),
        "precision": precision,
        "accumulate_grad_batches": config.accumulate,
        "gradient_clip_val": config.gradient_clip_val,
        "val_check_interval": config.validation_interval * config.accumulate,
        "check_val_every_n_epoch": None,
    }
    if ranks.world_size() > 1:
        settings |= {"num_nodes": ranks.world_size() // ranks.local_size(), "strategy": _strategy()}
    return Trainer(
        **settings,
        callbacks=callbacks,
        default_root_dir=folder,
        logger=False,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
