"""Names of searched paths and metrics in tables, figures and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ablate.config.errors import ConfigError
from ablate.config.formatting import format_setting, shorten_paths
from ablate.experiment.metrics import shorten_metric
from ablate.reports.section import Column
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.verdict_summary import describe_own
from ablate.tasks import tasks

LEARNING_RATE = "optimizer.lr"
ALPHA = "norm.alpha"

_SPOKEN = {LEARNING_RATE: "learning rate", ALPHA: "alpha"}
_UNITS = {ALPHA: "share of the layers"}


def list_searched(spec: Sweep) -> list[str]:
    """Return every path that at least one arm searches: the learning rate, alpha, then the others as in the file."""
    plain = spec.without_grid()
    paths = list(dict.fromkeys(path for arm in plain.all_arms for path in plain.space(arm)))
    return sorted(paths, key=lambda path: (path != LEARNING_RATE, path != ALPHA))


def list_settings(record: SweepRecord, params: Iterable[Mapping[str, Any]]) -> list[Column]:
    """Return a column for each searched parameter; `params` are the settings of each row."""
    rows = list(params)
    names = shorten_paths(list_searched(record.spec))
    return [
        Column(name, [format_setting(row[path]) if path in row else None for row in rows], is_setting=True)
        for path, name in names.items()
    ]


def name_parameter(path: str) -> str:
    """Return the name of a searched path in prose."""
    return _SPOKEN.get(path) or path.rpartition(".")[2].replace("_", " ")


def label_parameter(path: str) -> str:
    """Return the axis label of a searched path, with its unit if it has one."""
    return f"{name_parameter(path)} ({', '.join([path, *([_UNITS[path]] if path in _UNITS else [])])})"


def label_metric(metric: str, spec: Sweep) -> str:
    """Return the label of an axis for a metric, with its unit."""
    known, name = describe_own(metric, spec), shorten_metric(metric)
    return f"{name} ({known.label})" if known and known.label else name


def name_items(spec: Sweep) -> str:
    """Return the noun for a model's training items."""
    try:
        return spec.base(next(iter(spec.all_arms))).unit
    except ConfigError:  # a plugin is missing
        return "items"


def name_validation_item(spec: Sweep) -> str:
    """Return the noun for one item of the validation set."""
    if name_items(spec) in ("pairs", "answers"):
        return "pair"
    return tasks[spec.task].sample if spec.task in tasks else "item"
