"""The evaluation part of an experiment: downstream tasks during training."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from ablate.config.base import Config, Names
from ablate.config.bounds import MOST_BATCH, MOST_ITEMS, MOST_STEPS
from ablate.config.errors import Problem


class EvaluationConfig(Config):
    """Downstream tasks that are scored during training, without changing any of its numbers. Needs the extra eval."""

    tasks: Names = ()
    """Tasks of lm-evaluation-harness, such as arc_easy,piqa or a list. None: no evaluation."""
    every_n_steps: int | None = Field(None, gt=0, le=MOST_STEPS)
    """Updates between two evaluations; there is always one after the last update. None: only that one."""
    task_data: str | None = None
    """A folder with the data of the tasks, each laid out as its repository on the hub. None: the Hugging Face hub."""
    shots: int | None = Field(None, ge=0, le=MOST_BATCH)
    """Solved examples before each question. None: the task's own number, mostly 0."""
    limit: int | None = Field(None, gt=0, le=MOST_ITEMS)
    """Number of questions of each task, from its start. None: all."""
    batch_size: int = Field(16, gt=0, le=MOST_BATCH)
    """Number of answers that are scored at a time."""

    @field_validator("tasks", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    def validate(self, task: str, strategy: str) -> list[Problem]:  # type: ignore[override]
        """Return the problems in an experiment with this task and strategy."""
        if not self.tasks:
            return []
        if task != "language_modeling":
            return [Problem("tasks", "are for language models only; remove them", list(self.tasks))]
        if strategy == "fsdp":
            return [Problem("tasks", "need whole weights on each device: trainer.strategy=ddp", list(self.tasks))]
        return []
