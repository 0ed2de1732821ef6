"""The settings for opening models, and an opened model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from ablate.data.spans.questions import SpanQuestion
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
    questions: Callable[[], Sequence[SpanQuestion]] | None = None
    """Reads the questions that models with a span head answer; None: none are given."""
    needs_span_head: bool = False
    """Whether models without a span head are refused, as there is nothing to score them on."""


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
