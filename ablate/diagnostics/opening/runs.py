"""Opening Ablate's own models: of runs, checkpoints and arms of sweeps, trained or at initialisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import DataError
from ablate.data.files import identify_files
from ablate.data.text.tokenizers import load_data_tokenizer
from ablate.diagnostics.measures import Layers, Subject
from ablate.diagnostics.measures.subject import build_loader
from ablate.diagnostics.opening.base import Opened, Opening, load_data
from ablate.scheduler.donors import resolve_run
from ablate.sweeps.spec.references import PREFIX
from ablate.training.runs import describe_plugins
from ablate.training.trained import open_trained


def open_run(name: str, opening: Opening, initial: bool = False) -> Opened:
    """Return the model of a run's id, a checkpoint or `sweep:NAME/ARM`; `initial`: before its first update."""
    source = open_trained(resolve_run(name))
    experiment, corpus = load_data(source.experiment.to_tree(), opening.data, "--data")
    classes, shape = source.inputs
    if classes and corpus.classes > classes:
        raise DataError(f"{name} knows {classes} classes, and the data has {corpus.classes}. Take data like its own.")
    if len(corpus.shape) > 1 and corpus.shape != shape:
        raise DataError(f"{name} takes images of {shape}, and the data has {corpus.shape}.")
    if initial:  # parameters that a placement sets on the first batch are not set
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(source.experiment.seed)
            model = source.experiment.build_model(*source.inputs).eval()
    else:
        model = source.model()
    model = model.to(opening.device, opening.dtype)
    weights = f"{initial} {identify_files(str(source.file))}"
    code = f"{describe_plugins(experiment)} {plugins.list_installed()}"
    label = f"{source.experiment.norm.kind} {source.file.absolute().parent.name[:8]}"
    if name.startswith(PREFIX):
        label = name.rpartition("/")[2]
    task, is_text = experiment.task, experiment.task.inputs == "tokens"

    def forward(inputs: Any) -> Tensor:
        output: Tensor = model(inputs if is_text else inputs.to(opening.dtype))
        return output

    subject = Subject(
        label=f"{label}{' at initialisation' if initial else ''}",
        layers=Layers(model),
        forward=lambda batch: forward(batch.inputs),
        items=len(corpus.val),
        load=build_loader([corpus.val], padded=is_text),
        per_item=task.count_items(corpus.shape),
        unit=task.unit,
        classifies=task.classifies,
        sum_losses=lambda batch: task.sum_losses(model, forward, batch.inputs, batch.targets),
        device=opening.device,
        identity=f"{weights} {code} {corpus.identity} {experiment.data!r} {opening.dtype}",
    )
    own = partial(load_data_tokenizer, source.experiment.data, tracking.cache_folder()) if is_text else None
    has_targets = classes in (0, corpus.classes) or is_text
    return Opened(subject, corpus.description, None if initial else source.run_id, has_targets, own)
