"""What searched paths and metrics are called in tables, figures and sentences."""

from __future__ import annotations

from collections.abc import Iterable

from ablate.config.errors import ConfigError
from ablate.sweeps.spec.sweep import Sweep

LEARNING_RATE = "optimizer.lr"
ALPHA = "norm.alpha"

_SPOKEN = {LEARNING_RATE: "learning rate", ALPHA: "alpha"}
_UNITS = {ALPHA: "share of the layers"}


def searched(spec: Sweep) -> list[str]:
    """Every path that some arm searches: the learning rate and alpha first, the others in the order of the file."""
    paths = list(dict.fromkeys(path for arm in spec.all_arms for path in spec.space(arm)))
    return sorted(paths, key=lambda path: (path != LEARNING_RATE, path != ALPHA))


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Path -> its last segment, or the whole path where another one ends the same."""
    known = list(dict.fromkeys(paths))
    tails = [path.rpartition(".")[2] for path in known]
    return {path: tail if tails.count(tail) == 1 else path for path, tail in zip(known, tails, strict=True)}


def parameter_name(path: str) -> str:
    """What a searched path is called in prose."""
    return _SPOKEN.get(path) or path.rpartition(".")[2].replace("_", " ")


def parameter_label(path: str) -> str:
    """The axis of a searched path, with its unit where it has one."""
    return f"{parameter_name(path)} ({', '.join([path, *([_UNITS[path]] if path in _UNITS else [])])})"


def metric_label(metric: str, spec: Sweep) -> str:
    """The axis of a metric, with its unit."""
    token = "image" if task(spec) == "image_classification" else "token"
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
    kind = metric_kind(metric)
    return f"{metric} ({units[kind]})" if kind in units else metric


def metric_kind(metric: str) -> str:
    """val/loss of val/loss and of val/wiki/loss, that of a further validation set."""
    parts = metric.split("/")
    return f"{parts[0]}/{parts[-1]}"


def unit(spec: Sweep) -> str:
    """What the objective counts, in a sentence."""
    metric = spec.objective.metric
    return {"val/loss": "nats", "val/bits_per_byte": "bits per byte"}.get(metric_kind(metric), metric)


def items(spec: Sweep) -> str:
    """What a model is trained on, counted."""
    try:
        return spec.base(next(iter(spec.all_arms))).unit
    except ConfigError:  # a plugin is missing
        return "items"


def validated(spec: Sweep) -> str:
    """One of what a model is validated on."""
    if items(spec) in ("pairs", "answers"):
        return "pair"
    return {"image_classification": "image", "language_modeling": "sequence"}.get(task(spec), "item")


def task(spec: Sweep) -> str:
    """What the models are trained for, or '' where the sweep's experiments cannot be built (a plugin is missing)."""
    try:
        return spec.base(next(iter(spec.all_arms))).data.task
    except ConfigError:
        return ""
