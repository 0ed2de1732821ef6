"""The experiment that aligns a trained model, with suitable settings, and its run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.addons.post_training.alignment.measures import Reward
from ablate.addons.post_training.alignment.run import build_procedure
from ablate.config.errors import AblateError
from ablate.data.text.tokenizers import HuggingFace, keep_tokenizer, load_data_tokenizer
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Place
from ablate.training.train import train
from ablate.training.trained import TrainedModel, open_trained

SETTINGS: Mapping[str, Any] = {
    "trainer.max_steps": 500,
    "trainer.batch_size": 16,
    "trainer.log_every_n_steps": 1,
    "trainer.gradient_clip_val": 1.0,
    "optimizer": {"kind": "adamw", "lr": 1e-6, "betas": [0.9, 0.999], "weight_decay": 0},
    "schedule": {"kind": "wsd", "warmup_steps": 0, "decay_fraction": 1, "shape": "linear", "final_fraction": 0},
}
"""Dotted path -> value of the defaults of an alignment that differ from an experiment's: the learning rate is small and
falls linearly to 0. It is validated once, at the end."""


@dataclass(frozen=True)
class Aligned:
    """The result of an alignment."""

    status: str
    """completed, or diverged, in which case there is no model."""
    run_id: str
    """The MLflow run."""
    folder: str
    """The model as `transformers` loads it: `hf:FOLDER` for `ablate evaluate`."""
    metrics: dict[str, float]
    """Measured on held-out prompts, by name."""
    told: str
    """Description of the training data."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def align(name: str, start: str, pairs: str, settings: Mapping[str, Any], reward: Reward | None = None) -> Aligned:
    """Align the run or checkpoint `start`, which the user named `name`, and return the result.

    Args:
        name: for messages and tags.
        start: a run's id or a checkpoint.
        pairs: preference pairs: a file, a glob or a dataset.
        settings: dotted path -> value, overriding `SETTINGS`; align.method is among them.
        reward: a reward model in Python.

    Raises AblateError for a model that is not a language model, for missing or invalid pairs, and without the extra
    `rlhf`.
    """
    source = open_trained(start)
    if (task := source.experiment.task.kind) != "language_modeling":
        raise AblateError(f"{name} is for {task.replace('_', ' ')}; align is for language models.")
    experiment = build_experiment(source, start, pairs, settings)
    place = Place("align", f"{settings['align.method']} {name}", tags={"ablate.aligned": name})
    result = train(experiment, place, procedure=build_procedure(reward))
    assert result.run_id is not None
    facts = result.facts
    text = f"{pairs}: {facts['ablate.corpus_description']}"
    if result.status != "completed":
        text += f". {result.status}: {result.reason}"
    return Aligned(result.status, result.run_id, facts.get("ablate.folder", ""), result.metrics, text)


def build_experiment(source: TrainedModel, start: str, pairs: str, settings: Mapping[str, Any]) -> Experiment:
    """Return the experiment that aligns the model of `source`, named `start`. Raises ConfigError and DataError."""
    before = source.experiment.to_tree()
    local = Path(pairs).expanduser()
    is_file = bool(local.suffix) and not os.path.isdir(local)
    settings = {**SETTINGS, **settings}
    if is_file:
        settings.pop("data.train_split", None)
    return Experiment.from_mapping(
        {name: before[name] for name in ("model", "norm", "init", "plugins")},
        {
            "data.kind": "preferences",
            "data.files" if is_file else "data.dataset": pairs,
            "data.tokenizer": _name_tokenizer(source),
            "data.end_of_text": getattr(source.experiment.data, "end_of_text", None),
            "data.seq_len": source.inputs[1][0],
            "warm_start": {"from": start, "copy": "all"},
            "trainer.val_check_interval": settings["trainer.max_steps"],
        },
        settings,
    )


def _name_tokenizer(source: TrainedModel) -> str:
    """Return the value of `data.tokenizer` for a run's tokenizer; one that was trained on the run's text has no name
    and is kept in the cache. Raises DataError if it no longer exists."""
    data, cache = source.experiment.data, tracking.cache_folder()
    name = str(getattr(data, "tokenizer", "bytes"))
    if not name.startswith("bpe-"):
        return name
    tokenizer = load_data_tokenizer(data, cache)
    assert isinstance(tokenizer, HuggingFace)
    return str(keep_tokenizer(tokenizer.json, cache))
