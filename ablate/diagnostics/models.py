"""What names a model: a run, a checkpoint, `sweep:NAME/ARM`, `init:` any of these, `hf:NAME`, `timm:NAME`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ablate import tracking
from ablate.config.errors import DataError
from ablate.data import BatchDataset
from ablate.data.text.tokenizers import tokenizer_of
from ablate.diagnostics import Layers, Subject
from ablate.diagnostics.data import loaded
from ablate.diagnostics.loaders import corpus_loader
from ablate.diagnostics.opening import Opened, Opening, identity_of
from ablate.diagnostics.timm_models import timm_model
from ablate.diagnostics.transformers_models import hub_model
from ablate.models import Model
from ablate.sweeps.references import resolved
from ablate.sweeps.stages import PREFIX
from ablate.tasks import tasks
from ablate.training.trained import Source, find

INITIAL = "init:"
OTHERS: dict[str, Callable[[str, Opening], Opened]] = {"hf:": hub_model, "timm:": timm_model}
"""Prefix -> what opens a model that is not Ablate's."""


def open_model(given: str, opening: Opening) -> Opened:
    """The model that `given` names, perhaps after LABEL=. Raises AblateError."""
    label, named, name = given.partition("=")
    if not named or any(given.startswith(prefix) for prefix in (PREFIX, INITIAL, *OTHERS)) or Path(given).exists():
        label, name = "", given
    prefix = next((prefix for prefix in OTHERS if name.startswith(prefix)), None)
    opened = OTHERS[prefix](name.removeprefix(prefix), opening) if prefix else _ours(name, opening)
    return replace(opened, subject=replace(opened.subject, label=label)) if label else opened


def _ours(name: str, opening: Opening) -> Opened:
    initial = name.startswith(INITIAL)
    name = name.removeprefix(INITIAL)
    source = find(resolved(name))
    experiment, corpus = loaded(source.experiment.to_tree(), opening.data, "--data")
    classes, shape = source.inputs
    if corpus.classes > classes:
        raise DataError(f"{name} knows {classes} classes, and the data has {corpus.classes}. Take data like its own.")
    if len(corpus.shape) > 1 and corpus.shape != shape:
        raise DataError(f"{name} takes images of {shape}, and the data has {corpus.shape}.")
    model = _initial(source) if initial else source.model()
    model = model.to(opening.device, opening.dtype)
    task = tasks[experiment.data.task]
    datasets: list[BatchDataset] = [corpus.val]
    subject = Subject(
        label=f"{_label(name, source)}{' at initialisation' if initial else ''}",
        layers=Layers(model),
        forward=lambda batch: model(batch.inputs if task.unit == "tokens" else batch.inputs.to(opening.dtype)),
        items=len(corpus.val),
        load=corpus_loader(datasets, task.unit),
        per_item=corpus.items_per_sample,
        unit=task.unit,
        device=opening.device,
        identity=f"{initial} {identity_of(str(source.file))} {corpus.fingerprint} {experiment.data!r} {opening.dtype}",
    )
    own = partial(tokenizer_of, source.experiment.data, tracking.cache_folder()) if task.unit == "tokens" else None
    has_targets = corpus.classes == classes or task.unit == "tokens"
    return Opened(subject, corpus.description, None if initial else source.run_id, has_targets, own)


def _initial(source: Source) -> Model:
    """The model before its first update, with the weights that its training began with. What a placement measures on
    the first batch is not among them."""
    config = source.experiment
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return config.model.build(config.norm, config.init, *source.inputs).eval()


def _label(name: str, source: Source) -> str:
    """An arm by its name, a run by its placement and the beginning of its id, a file by its folder."""
    if name.startswith(PREFIX):
        return name.rpartition("/")[2]
    return f"{source.experiment.norm.kind} {source.file.absolute().parent.name[:8]}"
