"""Lightning's WandbLogger: no password leaves the machine, nothing waits for a person or for ever for a network."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from ablate.experiment.observers.place import LogPlace

PATIENCE = 60.0
"""Seconds for which the beginning and the end of a run wait for W&B."""


def open_wandb(project: str, entity: str | None, offline: bool, place: LogPlace) -> Logger:
    """Return the logger of the W&B run that has the id of the run in MLflow."""
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    logging.getLogger("wandb").setLevel(logging.ERROR)
    settings = wandb.Settings(
        console="off",  # the terminal stays ours
        silent=True,
        disable_git=True,
        save_code=False,
        x_disable_meta=True,  # the command line, in which an address may have a password
        x_disable_stats=True,
        init_timeout=PATIENCE,
        finish_timeout=PATIENCE,
    )
    mode = "offline" if offline else "online"  # not WandbLogger's `offline`, which is for the whole process
    where: dict[str, Any] = {"mode": mode, "settings": settings, **({"entity": entity} if entity else {})}
    return WandbLogger(place.name, place.folder, place.run_id, project=project, **where)


def close_wandb(run: Any, status: str) -> None:
    """End the W&B run, so that the next run of this process gets one of its own."""
    run.finish(exit_code=0 if status == "completed" else 1)


def has_key() -> bool:
    """Return whether this machine has a key of W&B. Asks no person and no server."""
    import wandb

    with contextlib.suppress(Exception):  # of what wandb cannot read
        return bool(wandb.login(prompt=False, verify=False))
    return False
