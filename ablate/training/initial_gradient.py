"""The gradient of an experiment before its first update, on a few items of its data."""

from __future__ import annotations

import torch

from ablate.config.errors import ConfigError
from ablate.data import Corpus
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.training.runs import translate_errors

ITEMS = 8
"""Items of the batch: sequences or images."""
MOST_WEIGHTS = 2_000_000
"""Weights in the matrices of the layers; a larger model is measured narrower, at the same depth."""


def measure_initial_gradient(experiment: Experiment, corpus: Corpus) -> float | None:
    """Return the norm of the gradient of a batch's loss with respect to all weights of the initialised model, in
    float32 on the CPU: a number for comparing arms of one size on the same data. The batch has `ITEMS` items; a model
    with more than `MOST_WEIGHTS` weights in its layers is narrowed to them. None: it cannot be narrowed, as its library
    or the groups of its norm layer do not allow it. Raises DataError, OutOfMemory."""
    if (weights := experiment.model.layer_parameters()) > MOST_WEIGHTS:
        try:
            experiment = Experiment.from_mapping(experiment.to_tree(), experiment.narrowed(MOST_WEIGHTS / weights))
        except ConfigError:
            return None
    inputs, targets = next(iter(corpus.train.batches(ITEMS, experiment.seed)))
    with translate_errors(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        model = experiment.build_model(corpus.classes, corpus.shape)
        experiment.norm.prepare(model, lambda: inputs)
        experiment.task.compute_loss(model, inputs, targets).backward()
        return ranks.norm(p.grad for p in model.parameters() if p.grad is not None).item()
