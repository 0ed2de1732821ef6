"""The metrics that a run reports, by name: known without a model."""

from __future__ import annotations

from ablate.experiment.tree import Experiment


def list_metrics(experiment: Experiment) -> list[str]:
    """Return the metrics of a validation of `experiment`, which a sweep can compare."""
    if experiment.align:
        return experiment.align.reported
    metrics = experiment.task.metrics
    names = [f"val/{metric.name}" for metric in metrics]
    names += [f"val/{part}/{m.name}" for part in experiment.data.val_names for m in metrics if m.further]
    return names if experiment.trainer.ema_decay is None else [*names, *map(name_average, names)]


def name_average(metric: str) -> str:
    """Return the name of `metric` where it is measured with the average of the weights."""
    return metric.replace("val/", "val/ema/", 1)
