"""Downstream tasks for layer removal: what a model scores on them, whole and without each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ablate.config.errors import AblateError
from ablate.config.extras import library
from ablate.diagnostics import Batch, Metric
from ablate.diagnostics.opening import Opened
from ablate.evaluation import scoring, tasks


@dataclass(frozen=True)
class Benchmarks:
    """Which tasks of lm-evaluation-harness, and on what."""

    names: Sequence[str]
    """Such as arc_easy."""
    task_data: str | Path | None = None
    """A folder with their data; None: the hub."""
    limit: int | None = None
    """The first so many questions of each; None: all."""


class _Logits(nn.Module):
    """Token ids [batch, seq] to logits, whatever the model itself takes and gives."""

    def __init__(self, opened: Opened) -> None:
        super().__init__()
        self.model, self.subject = opened.subject.layers.model, opened.subject

    def forward(self, tokens: Tensor) -> Tensor:
        return self.subject.forward(Batch(tokens, tokens))


def metrics_of(opened: Opened, asked: Benchmarks) -> Mapping[str, Metric]:
    """TASK/METRIC -> what it is of the opened model, as it is when asked. Raises AblateError for what is no causal
    language model, unknown tasks, missing data, and without the extra `eval`."""
    library("lm_eval", "eval")
    if opened.tokenizer is None:
        raise AblateError(f"{opened.subject.label}: tasks are for causal language models with a tokenizer.")
    tokenizer, model = opened.tokenizer(), _Logits(opened)

    def metric(task: str, name: str, loaded: Mapping[str, Any]) -> Metric:
        def found(_: nn.Module) -> float:
            score = scoring.score(model, tokenizer, loaded, length=opened.subject.per_item, limit=asked.limit)
            return score[task].metrics[name]

        return found

    metrics = {}
    for task in asked.names:
        loaded = tasks.load([task], asked.task_data)
        name = _metric(loaded["tasks"].get(task))
        metrics[f"{task}/{name}"] = metric(task, name, loaded)
    return metrics


def _metric(task: Any) -> str:
    """The accuracy by the length of the answers, the accuracy, or what else a task has; of a group the accuracy."""
    known = ["acc"] if task is None else [entry["metric"] for entry in task.get_config("metric_list")]
    return next((name for name in ("acc_norm", "acc") if name in known), known[0])
