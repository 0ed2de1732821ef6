"""The metrics that a validation reports, by task. Importing them does not import the LightningModules, which takes
seconds."""

from __future__ import annotations

from typing import NamedTuple

from ablate.experiment.tree import Experiment

LOSS, PERPLEXITY, BITS_PER_BYTE = "loss", "perplexity", "bits_per_byte"
ACCURACY, ACCURACY_TOP5 = "accuracy", "accuracy_top5"
_TEXT = (LOSS, PERPLEXITY, BITS_PER_BYTE)


class Reports(NamedTuple):
    """Names of a task's metrics."""

    own: tuple[str, ...]
    """Metrics on the main validation set: val/NAME."""
    further: tuple[str, ...]
    """Metrics on each further validation set: val/SET/NAME."""


REPORTS = {
    "language_modeling": Reports(own=_TEXT, further=_TEXT),
    "image_classification": Reports(own=(LOSS, ACCURACY, ACCURACY_TOP5), further=(LOSS,)),
}
"""Task -> the names of its metrics."""


def list_metrics(experiment: Experiment) -> list[str]:
    """Return the validation metrics of `experiment` that a sweep can compare."""
    if experiment.align:
        return experiment.align.reported
    own, further = REPORTS[experiment.data.task]
    names = [f"val/{name}" for name in own]
    names += [f"val/{part}/{name}" for part in experiment.data.val_names for name in further]
    return names if experiment.trainer.ema_decay is None else [*names, *map(name_average, names)]


def name_average(metric: str) -> str:
    """Return the name of `metric` when it is measured with the averaged weights."""
    return metric.replace("val/", "val/ema/", 1)
