"""The kinds of `trainer.loggers`: logs of a run beside MLflow, each written by Lightning's own logger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.errors import Problem
from ablate.config.extras import find_missing
from ablate.config.registry import Registry
from ablate.experiment.observers.place import LogPlace

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class LoggerConfig(Kind):
    """A log of a run beside MLflow, which stays the record: every metric that MLflow gets while the run is trained, and
    those that callbacks log. The x-axis is the number of updates.

    A logger that fails while a run goes is left out from there on, with a warning; the run goes on. A resumed run
    continues its log.
    """

    library: ClassVar[str] = ""
    """The Python module that it needs besides those of Ablate; '' for none."""
    extra: ClassVar[str] = ""
    """The extra of Ablate that installs `library`, if there is one."""

    kind: str

    def build(self, place: LogPlace) -> Logger:
        """Return the logger, a `lightning.pytorch.loggers.Logger`, for a new run or one that goes on."""
        raise NotImplementedError

    def close(self, logger: Logger, status: str) -> None:
        """End the log of a run that ended as `status`: completed, diverged, pruned, interrupted or failed."""
        logger.finalize("success" if status == "completed" else status)

    def validate(self) -> list[Problem]:  # type: ignore[override]
        """Return why it cannot run here, such as a missing library. Asked before training, not where a configuration is
        read."""
        return find_missing(self.library, self.extra, f"the logger {self.kind}")


loggers: Registry[LoggerConfig] = Registry("logger", LoggerConfig)


@loggers.register
class Csv(LoggerConfig):
    """A table of all metrics, mlruns/logs/csv/RUN_ID/metrics.csv, and the configuration beside it, hparams.yaml
    (Lightning's CSVLogger)."""

    kind: Literal["csv"] = "csv"

    def build(self, place: LogPlace) -> Logger:
        from ablate.experiment.observers.csv_log import open_csv

        return open_csv(place)


@loggers.register
class TensorBoard(LoggerConfig):
    """Event files in mlruns/logs/tensorboard/RUN_ID (Lightning's TensorBoardLogger); `tensorboard --logdir
    mlruns/logs/tensorboard` shows them."""

    library = "tensorboard"
    extra = "tensorboard"

    kind: Literal["tensorboard"] = "tensorboard"

    def build(self, place: LogPlace) -> Logger:
        from lightning.pytorch.loggers import TensorBoardLogger

        purge: dict[str, Any] = {"purge_step": place.updates + 1} if place.updates else {}
        return TensorBoardLogger(place.folder, self.kind, place.run_id, default_hp_metric=False, **purge)


@loggers.register
class WandB(LoggerConfig):
    """A run of Weights & Biases (Lightning's WandbLogger). Its key is no setting: WANDB_API_KEY or `wandb login`."""

    library = "wandb"
    extra = "wandb"

    kind: Literal["wandb"] = "wandb"
    project: str = Field("ablate", min_length=1)
    """The project in W&B."""
    entity: str | None = None
    """The user or team whose project it is. None: that of the key."""
    offline: bool = True
    """Whether all is written to mlruns/logs/wandb alone, without a network; `wandb sync FOLDER` sends it later. false:
    metrics, configuration and run name are sent to W&B as they come."""

    def build(self, place: LogPlace) -> Logger:
        from ablate.experiment.observers.wandb_log import open_wandb

        return open_wandb(self.project, self.entity, self.offline, place)

    def close(self, logger: Any, status: str) -> None:
        from ablate.experiment.observers.wandb_log import close_wandb

        close_wandb(logger.experiment, status)

    def validate(self) -> list[Problem]:  # type: ignore[override]
        from ablate.experiment.observers.wandb_log import has_key

        problems = super().validate()
        if not problems and not self.offline and not has_key():
            text = "wandb with offline: false needs a key: set WANDB_API_KEY, or run `wandb login` once"
            problems.append(Problem("offline", text, False))
        return problems
