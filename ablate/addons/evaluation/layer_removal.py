"""Downstream tasks for layer removal: the scores of a model, whole and without each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ablate.addons.evaluation import scoring, tasks
from ablate.config.errors import AblateError
from ablate.config.lazy import import_library
from ablate.data.files import identify_files
from ablate.diagnostics.kinds import heads
from ablate.diagnostics.measures import Batch, Metric, Subject

if TYPE_CHECKING:
    from ablate.data.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Benchmarks:
    """Tasks of lm-evaluation-harness and of models with a head of their own (`kinds.heads`), and their data."""

    names: Sequence[str]
    """Such as arc_easy."""
    task_data: str | Path | None = None
    """A folder with their data; None: the hub."""
    limit: int | None = None
    """Number of questions of each task; None: all."""

    def select(self, subject: Subject) -> Benchmarks:
        """Return those of the tasks that the model can answer: with a head of its own the task of this head, otherwise
        all that need no such head. Raises AblateError if there are none."""
        names = [name for name in self.names if (name == subject.task if subject.task else name not in heads)]
        if not names:
            if subject.task:
                reason = f"has a {heads[subject.task].noun}, so its only task is {subject.task}"
            else:
                reason = f"has no {heads[self.names[0]].noun}, which {self.names[0]} needs"
            raise AblateError(f"{subject.label} {reason}: it has no score on {', '.join(self.names)}.")
        return replace(self, names=names)

    def identify(self) -> str:
        """Return a text that changes with the tasks, their number of questions, and local files of their data; with the
        harness's version, whose tasks they are. The version of the hub's data is not known."""
        files = "" if self.task_data is None else identify_files(str(self.task_data))
        harness = metadata.version("lm_eval") if any(name not in heads for name in self.names) else ""
        return f"{list(self.names)} {harness} {self.limit} {files}"

    def load_metrics(self, subject: Subject, tokenizer: Callable[[], Tokenizer] | None) -> Mapping[str, Metric]:
        """Return TASK/METRIC -> a function of the subject's model in its state at the call, for tasks that it can
        answer (see `select`). Raises AblateError for a model that is no language model, unknown tasks, missing data,
        and without the extra `eval`. A subject with a head of its own scores itself, on its own data."""
        names = [name for name in self.names if name not in heads]
        if not names:
            return {}
        import_library("lm_eval", "eval")
        if tokenizer is None:
            raise AblateError(f"{subject.label}: tasks need a causal language model with a tokenizer.")
        encoder, model = tokenizer(), _Logits(subject)

        def build_metric(task: str, name: str, loaded: Mapping[str, Any]) -> Metric:
            def measure(_: nn.Module) -> float:
                score = scoring.score(model, encoder, loaded, length=subject.per_item, limit=self.limit)
                return score[task].metrics[name]

            return measure

        metrics = {}
        for name in names:
            for task, metric, loaded in _choose_metrics(
                name, tasks.load_tasks([name], self.task_data, limit=self.limit)
            ):
                metrics[f"{task}/{metric}"] = build_metric(task, metric, loaded)
        return metrics


class _Logits(nn.Module):
    """Token ids [batch, seq] to logits, independent of the model's own input and output format."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.model, self.subject = subject.layers.model, subject

    def forward(self, tokens: Tensor) -> Tensor:
        return self.subject.forward(Batch(tokens, tokens))


def _choose_metrics(name: str, loaded: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield (task or group, its metric, what is loaded of it): for a task, or a group that has an average, one; for any
    other group, or a tag, one for each of its tasks. The metric is the length-normalised accuracy if there is one, else
    the accuracy, else the first."""
    group = loaded["groups"].get(name)
    if group is not None and group.aggregate_metric_list:
        yield name, _choose([average.metric for average in group.aggregate_metric_list]), loaded
        return
    for task, one in loaded["tasks"].items():
        yield task, _choose(list(one.aggregation())), {"tasks": {task: one}, "groups": {}, "group_map": {}}


def _choose(metrics: Sequence[str]) -> str:
    return next((name for name in ("acc_norm", "acc") if name in metrics), metrics[0])
