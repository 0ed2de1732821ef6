"""The data that a model is measured with: what `--data` says."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

import torch

from ablate import tracking
from ablate.config.yaml import parse_overrides, read_yaml
from ablate.data import IGNORED, BatchDataset, Corpus, data_kinds
from ablate.diagnostics import Batch
from ablate.experiment.tree import Experiment

MASKED = 0.15
"""The share of tokens that a masked language model is asked for (Devlin et al. 2019, arXiv 1810.04805)."""


def data_settings(words: Sequence[str]) -> dict[str, Any]:
    """The settings in `--data` words, under `data`: a kind or preset, a YAML file, key=value, or files of text."""
    found: dict[str, Any] = {}
    files = []
    for word in words:
        if "=" in word:
            found |= {_below(key): value for key, value in parse_overrides([word]).items()}
        elif word.endswith((".yaml", ".yml")):
            found |= {_below(key): value for key, value in read_yaml(Path(word)).items()}
        elif word in data_kinds.names:
            found["data"] = word
        else:
            files.append(word)
    return {**found, **({"data.files": files} if files else {})}


def _below(key: str) -> str:
    return key if key == "data" or key.startswith("data.") else f"data.{key}"


def loaded(base: dict[str, Any], words: Sequence[str], source: str) -> tuple[Experiment, Corpus]:
    """The data of the settings `base` under `--data` words. A dataset of the hub is streamed unless they say otherwise:
    only its validation set is kept."""
    given = data_settings(words)
    own = base.get("data", {})
    if "data.files" in given and "data" not in given and own.get("kind") == "topics":  # bytes, which any text is
        given = {"data": {"kind": "text", "seq_len": own["seq_len"]}, **given}
    experiment = Experiment.from_mapping(base, given, source=source)
    if getattr(experiment.data, "dataset", None) and experiment.data.kind == "text" and "data.streaming" not in given:
        experiment = Experiment.from_mapping(base, given, {"data.streaming": True}, source=source)
    return experiment, experiment.data.load(tracking.cache_folder())


def everything(corpus: Corpus) -> list[BatchDataset]:
    """The validation set, then what would be trained on, where that is not a stream: for a model of others all of it is
    new."""
    train: Any = corpus.train
    return [corpus.val, train] if isinstance(train, BatchDataset) and isinstance(train, Sized) else [corpus.val]


def masked(load: Callable[[int, int], Batch], mask: int, ends: tuple[int | None, int | None]) -> Callable[..., Batch]:
    """Batches for a masked language model: between a first and a last token of its own, where there are such, one
    token in seven is masked and asked for, the same of each item however they are batched."""

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
            asked = (torch.rand(inputs.shape[1], generator=random) < MASKED) & free
            if batch.there is not None:
                asked &= batch.there[row]
            targets[row, asked] = inputs[row, asked]
            inputs[row, asked] = mask
        return Batch(inputs, targets, batch.there)

    return load_masked
