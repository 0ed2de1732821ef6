"""Names of searched paths and metrics in tables, figures and sentences."""

from __future__ import annotations

from collections.abc import Iterable

from ablate.config.errors import ConfigError
from ablate.sweeps.spec.sweep import Sweep

LEARNING_RATE = "optimizer.lr"
ALPHA = "norm.alpha"

_SPOKEN = {LEARNING_RATE: "learning rate", ALPHA: "alpha"}
_UNITS = {ALPHA: "share of the layers"}


def list_searched(spec: Sweep) -> list[str]:
    """Return every path that some arm searches: the learning rate, alpha, then the others as in the file."""
    paths = list(dict.fromkeys(path for arm in spec.all_arms for path in spec.space(arm)))
    return sorted(paths, key=lambda path: (path != LEARNING_RATE, path != ALPHA))


def shorten_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return path -> its last segment, or the whole path where another one ends the same."""
    known = list(dict.fromkeys(paths))
    tails = [path.rpartition(".")[2] for path in known]
    return {path: tail if tails.count(tail) == 1 else path for path, tail in zip(known, tails, strict=True)}


def name_parameter(path: str) -> str:
    """Return the name of a searched path in prose."""
    return _SPOKEN.get(path) or path.rpartition(".")[2].replace("_", " ")


def label_parameter(path: str) -> str:
    """Return the label of an axis for a searched path, with its unit where it has one."""
    return f"{name_parameter(path)} ({', '.join([path, *([_UNITS[path]] if path in _UNITS else [])])})"


def label_metric(metric: str, spec: Sweep) -> str:
    """Return the label of an axis for a metric, with its unit."""
    token = "image" if find_task(spec) == "image_classification" else "token"
    units = {
        "val/loss": f"nats per {token}",
        "val/bits_per_byte": "bits per byte of text",
        "val/accuracy": "share of images",
        "val/perplexity": f"per {token}",
        "align/accuracy": "share of pairs",
        "align/margin": "chosen less rejected",
        "align/kl": "nats per answer",
        "align/reward": "by the reward model",
        "align/win_rate": "share of prompts",
    }
    kind = strip_set_name(metric)
    return f"{metric} ({units[kind]})" if kind in units else metric


def strip_set_name(metric: str) -> str:
    """Return val/loss for val/loss and for val/wiki/loss, the loss on a further validation set."""
    parts = metric.split("/")
    return f"{parts[0]}/{parts[-1]}"


def name_unit(spec: Sweep) -> str:
    """Return the unit of the objective in a sentence."""
    metric = spec.objective.metric
    return {"val/loss": "nats", "val/bits_per_byte": "bits per byte"}.get(strip_set_name(metric), metric)


def name_items(spec: Sweep) -> str:
    """Return the noun for what a model is trained on."""
    try:
        return spec.base(next(iter(spec.all_arms))).unit
    except ConfigError:  # a plugin is missing
        return "items"


def name_validation_item(spec: Sweep) -> str:
    """Return the noun for one item of the validation set."""
    if name_items(spec) in ("pairs", "answers"):
        return "pair"
    return {"image_classification": "image", "language_modeling": "sequence"}.get(find_task(spec), "item")


def find_task(spec: Sweep) -> str:
    """Return the task of the models, or '' where the sweep's experiments cannot be built (a plugin is missing)."""
    try:
        return spec.base(next(iter(spec.all_arms))).data.task
    except ConfigError:
        return ""
