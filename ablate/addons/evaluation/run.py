"""Evaluation of trained models on downstream tasks; the scores are logged to their MLflow runs, from which the report
reads them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ablate.addons.evaluation.scoring import score, score_hf
from ablate.addons.evaluation.tasks import load_tasks
from ablate.addons.export import tokenizer
from ablate.config.errors import AblateError, StoreError
from ablate.config.formatting import to_json
from ablate.config.hub import find_model
from ablate.tracking.scores import log_scores
from ablate.training.trained import TrainedModel, open_trained
from ablate.verdict.questions import QuestionDifference, Score, average_by_question, compare_by_question

_log = logging.getLogger(__name__)

HF = "hf:"
"""Prefix of the name of a model of `transformers`."""


@dataclass(frozen=True)
class Evaluated:
    """One model and its scores."""

    name: str
    """Name as given; for an arm of a sweep sweep:NAME/ARM."""
    run_id: str | None
    """Its MLflow run."""
    scores: dict[str, Score]
    """By task."""


@dataclass(frozen=True)
class Options:
    """The tasks and their settings; see `ablate.addons.evaluation.scoring.score`."""

    tasks: Sequence[str]
    task_data: str | None = None
    shots: int | None = None
    limit: int | None = None
    batch_size: int = 16
    progress: bool = True
    trust_remote_code: bool = False
    """Whether code that comes with a model of `transformers` may be run."""

    @property
    def scoring(self) -> dict[str, Any]:
        """The settings that are common to all models."""
        return {"limit": self.limit, "batch_size": self.batch_size, "progress": self.progress}


def evaluate(models: Iterable[tuple[str, str]], options: Options) -> list[Evaluated]:
    """Score models, each of which is (its name, a run's id or a checkpoint, or `hf:` and a model of `transformers`).
    The scores of a run are logged there as soon as they are known. Raises AblateError for a model that is not a
    language model, an unknown task, missing data, and without the extra `eval`.
    """
    sources = [(name, _find(model)) for name, model in models]  # a wrong one is reported before any is scored
    tasks = load_tasks(options.tasks, options.task_data, options.shots, options.limit)
    evaluated = []
    for name, source in sources:
        if isinstance(source, str):
            evaluated.append(
                Evaluated(
                    name, None, score_hf(source, tasks, trust_remote_code=options.trust_remote_code, **options.scoring)
                )
            )
            continue
        scores = _score(source, tasks, options)
        if source.run_id:
            trainer, (_, (length,)) = source.experiment.trainer, source.inputs
            contents = {task: own.to_dict() for task, own in scores.items()}
            try:
                log_scores(source.run_id, contents, source.step * trainer.batch_size * length)
            except StoreError as error:  # the scores are printed anyway
                _log.warning(f"The scores of {name} are not recorded in its run. {error}")
        evaluated.append(Evaluated(name, source.run_id, scores))
    return evaluated


def _find(model: str) -> TrainedModel | str:
    """Return a trained language model; for `hf:`, the name that transformers loads."""
    if model.startswith(HF):
        return find_model(model.removeprefix(HF))
    source = open_trained(model)
    if (task := source.experiment.task.kind) != "language_modeling":
        raise AblateError(f"{model} is for {task.replace('_', ' ')}; the tasks are for language models.")
    return source


def _score(source: TrainedModel, tasks: dict[str, Any], options: Options) -> dict[str, Score]:
    _, (length,) = source.inputs
    model = source.model().to("cuda" if torch.cuda.is_available() else "cpu")
    return score(model, tokenizer.load_own(source.experiment), tasks, length=length, **options.scoring)


def compare(evaluated: Sequence[Evaluated]) -> dict[tuple[str, str, str], QuestionDifference]:
    """Return (model, task, metric) -> its difference to the first model, paired by question."""
    differences = {}
    for other in evaluated[1:]:
        for task, ours in other.scores.items():
            first = evaluated[0].scores[task]
            for metric in ours.stderr:
                answers = (average_by_question([scored], metric) for scored in (ours, first))
                if paired := compare_by_question(*answers):
                    differences[other.name, task, metric] = paired
    return differences


def to_dict(evaluated: Sequence[Evaluated], questions: bool = False) -> list[dict[str, Any]]:
    """Return plain values, for JSON."""
    differences = compare(evaluated)
    return [
        {
            "model": one.name,
            "run_id": one.run_id,
            "tasks": {
                task: {
                    **{key: value for key, value in score.to_dict().items() if questions or key != "questions"},
                    "n": len(score.questions),
                    "less_first": {
                        metric: {"mean": d.mean, "low": d.low, "high": d.high}
                        for (name, of, metric), d in differences.items()
                        if (name, of) == (one.name, task)
                    },
                }
                for task, score in one.scores.items()
            },
        }
        for one in evaluated
    ]


def write(evaluated: Sequence[Evaluated], file: str) -> None:
    """Write all results, with each question, as JSON. Raises AblateError if the file cannot be written."""
    try:
        Path(file).expanduser().write_text(
            json.dumps(to_json(to_dict(evaluated, questions=True)), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise AblateError(f"{file} cannot be written: {error.strerror or error}.") from None
