"""The settings for opening models, an opened model, and the data that it is measured on: its own, or that of
`--data`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ablate import tracking
from ablate.config.yaml import parse_overrides, read_yaml
from ablate.data import IGNORED, Corpus, data_kinds
from ablate.diagnostics.measures import Batch, Subject
from ablate.experiment.tree import Experiment

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


MOST_TRAIN_TOKENS = 1_000_000
"""Of a dataset, whose validation set is measured; a coordinate check takes a few batches."""

MASKED = 0.15
"""The share of tokens that a masked language model predicts (Devlin et al. 2019, arXiv 1810.04805)."""


def parse_data_words(words: Sequence[str]) -> dict[str, Any]:
    """Return the settings below `data` of `--data` words: a kind or preset, a YAML file, key=value, or text files."""
    settings: dict[str, Any] = {}
    files = []
    for word in words:
        if "=" in word:
            settings |= {_prefix(key): value for key, value in parse_overrides([word]).items()}
        elif word.endswith((".yaml", ".yml")):
            settings |= {_prefix(key): value for key, value in read_yaml(Path(word)).items()}
        elif word in data_kinds.names:
            settings["data"] = word
        else:
            files.append(word)
    return {**settings, **({"data.files": files} if files else {})}


def _prefix(key: str) -> str:
    return key if key == "data" or key.startswith("data.") else f"data.{key}"


def load_data(base: dict[str, Any], words: Sequence[str], source: str) -> tuple[Experiment, Corpus]:
    """Return (experiment, its data) of the settings `base` and `--data` words. Of a dataset's training
    text no more than `MOST_TRAIN_TOKENS` are stored unless the words say so."""
    settings = parse_data_words(words)
    own = base.get("data", {})
    if "data.files" in settings and "data" not in settings and own.get("kind") == "topics":  # bytes, which any text is
        settings = {"data": {"kind": "text", "seq_len": own["seq_len"]}, **settings}
    experiment = Experiment.from_mapping(base, settings, source=source)
    data: Any = experiment.data
    if data.kind == "text" and data.dataset and "data.train_tokens" not in settings:
        most = min(data.train_tokens or MOST_TRAIN_TOKENS, MOST_TRAIN_TOKENS)
        experiment = Experiment.from_mapping(base, settings, {"data.train_tokens": most}, source=source)
    return experiment, experiment.data.load(tracking.cache_folder())


def mask_tokens(
    load: Callable[[int, int], Batch], mask: int, ends: tuple[int | None, int | None]
) -> Callable[..., Batch]:
    """Return a loader of batches for a masked language model: between its first and last special token (`ends`), one
    token in seven is masked and is a target, the same tokens of each item for every batching."""

    def load_masked(first: int, last: int) -> Batch:
        batch = load(first, last)
        inputs, targets = batch.inputs.clone(), torch.full_like(batch.inputs, IGNORED)
        for place, token in ((0, ends[0]), (-1, ends[1])):
            if token is not None:
                inputs[:, place] = token
        free = torch.ones(inputs.shape[1], dtype=torch.bool)
        free[0], free[-1] = ends[0] is None, ends[1] is None
        for row in range(len(inputs)):
            random = torch.Generator().manual_seed(first + row)
            is_target = (torch.rand(inputs.shape[1], generator=random) < MASKED) & free
            if batch.there is not None:
                is_target &= batch.there[row]
            targets[row, is_target] = inputs[row, is_target]
            inputs[row, is_target] = mask
        return Batch(inputs, targets, batch.there)

    return load_masked
