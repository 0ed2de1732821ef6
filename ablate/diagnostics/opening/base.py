"""The settings for opening models, and an opened model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ablate.diagnostics.measures import Subject

if TYPE_CHECKING:
    from ablate.data.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Opening:
    """Settings for opening models."""

    data: Sequence[str] = ()
    """`--data` words. Empty: the validation data of the model's own experiment."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    trust_remote_code: bool = False
    """Whether code that comes with a model may be run."""
    tasks: Sequence[str] = ()
    """`--tasks` that models are scored on without each layer."""
    task_data: str | Path | None = None
    """A folder with the questions of the tasks; None: the hub."""
    limit: int | None = None
    """Number of questions of each task; None: all."""


@dataclass(frozen=True)
class Opened:
    """A model that can be measured."""

    subject: Subject
    data: str
    """One line about the data."""
    run_id: str | None = None
    """The MLflow run that trained it."""
    has_targets: bool = True
    """Whether the data has the model's targets."""
    tokenizer: Callable[[], Tokenizer] | None = None
    """Loads the tokenizer of a causal language model."""
