"""Any experiment, from its configuration to its result: trained, or aligned where it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.data import Corpus, PairCorpus
from ablate.training.train import LIGHTNING, Hooks, Place, Procedure, Result, train

if TYPE_CHECKING:
    from ablate.experiment.tree import Experiment


def run(experiment: Experiment, place: Place | None = None, hooks: Hooks | None = None) -> Result:
    """Runs `experiment`, tracked in MLflow, and returns how it ended; see `ablate.training.train.train`."""
    return train(experiment, place or Place(), hooks or Hooks(), procedure_of(experiment))


def procedure_of(experiment: Experiment) -> Procedure:
    """How `experiment` is run."""
    if experiment.align:
        from ablate.post_training.alignment.run import procedure

        return procedure()
    return LIGHTNING


def validation_items(experiment: Experiment, corpus: Corpus) -> int:
    """Sequences or images that are validated on; of an alignment the held-out pairs that are measured."""
    if experiment.align and isinstance(corpus, PairCorpus):
        held = corpus.held.fitting(corpus.shape[0], experiment.align.answer)
        return min(len(held), experiment.align.measured)
    return len(corpus.val)


def pinned(experiment: Experiment, corpus: Corpus) -> Experiment:
    """`experiment` with the SHA-256 of what it starts from. Raises AblateError where that is missing or does not
    fit."""
    return procedure_of(experiment).pinned(experiment, corpus)
