"""`evaluate`: trained models on downstream tasks; the scores go to their runs in MLflow, and so into the report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.cli.tables import table
from ablate.config.errors import AblateError
from ablate.evaluation import results
from ablate.evaluation.comparing import Difference, by_question, difference
from ablate.evaluation.scoring import Score, score, score_hf
from ablate.evaluation.tasks import load, quiet
from ablate.sweeps.donors import resolved
from ablate.sweeps.spec.references import PREFIX
from ablate.sweeps.storage import read_sweep
from ablate.training.runs import CHECKPOINT
from ablate.training.trained import EXPORTED, Source, find

if TYPE_CHECKING:
    from rich.console import Console

HF = "hf:"


@dataclass(frozen=True)
class Evaluated:
    """One model and its scores."""

    name: str
    """As it was given; of an arm of a sweep sweep:NAME/ARM."""
    run_id: str | None
    """Its MLflow run."""
    scores: dict[str, Score]
    """By task."""


@dataclass(frozen=True)
class How:
    """What is asked, and how."""

    tasks: Sequence[str]
    task_data: str | None = None
    shots: int | None = None
    limit: int | None = None
    batch_size: int = 16
    progress: bool = True


def evaluate(given: Sequence[str], how: How, storage: str | None = None) -> list[Evaluated]:
    """Scores each model that is named: a run, a checkpoint, `sweep:NAME/ARM`, `sweep:NAME` for every arm, or `hf:` and
    a model of `transformers`. What belongs to a run is logged there as soon as it is known.

    Raises AblateError for what is no language model, an unknown task, missing data, and without the extra `eval`.
    """
    models = [model for name in given for model in _models(name, storage)]  # a wrong one is told before any is scored
    with quiet():
        loaded = load(how.tasks, how.task_data, how.shots)
    found = []
    for name, source in models:
        if isinstance(source, str):
            options: dict[str, Any] = {"limit": how.limit, "batch_size": how.batch_size, "progress": how.progress}
            found.append(Evaluated(name, None, score_hf(source, loaded, **options)))
            continue
        scores = _scored(source, loaded, how)
        if source.run_id:
            trainer, (_, (length,)) = source.experiment.trainer, source.inputs
            results.log(source.run_id, scores, source.step * trainer.batch_size * length)
        found.append(Evaluated(name, source.run_id, scores))
    return found


def _models(name: str, storage: str | None) -> Iterator[tuple[str, Source | str]]:
    """(what it is called, the model) of what was given; for `hf:` what transformers is to load."""
    if name.startswith(HF):
        yield name, name.removeprefix(HF)
    elif name.startswith(PREFIX) and "/" not in name:
        record = read_sweep(name.removeprefix(PREFIX), storage)
        for arm in record.trials:
            fresh = [
                t for t in record.confirmed.get(arm, ()) if t.status == "completed" and t.run_id and _kept(t.run_id)
            ]
            called = f"{PREFIX}{record.title}/{arm}"
            if fresh:
                yield from ((f"{called} seed {t.params.get('seed')}", _language(str(t.run_id))) for t in fresh)
            else:
                yield called, _language(resolved(called, storage))
    else:
        yield name, _language(resolved(name, storage))


def _kept(run_id: str) -> bool:
    folder = tracking.store_path() / "runs" / run_id
    return any((folder / name).exists() for name in (CHECKPOINT, EXPORTED))


def _language(given: str) -> Source:
    source = find(given)
    if (task := source.experiment.model.task) != "language_modeling":
        raise AblateError(f"{given} is for {task.replace('_', ' ')}; the tasks are for language models.")
    return source


def _scored(source: Source, loaded: dict[str, Any], how: How) -> dict[str, Score]:
    import torch

    from ablate.export import tokenizer

    _, (length,) = source.inputs
    model = source.model().to("cuda" if torch.cuda.is_available() else "cpu")
    options: dict[str, Any] = {"limit": how.limit, "batch_size": how.batch_size, "progress": how.progress}
    return score(model, tokenizer.load_own(source.experiment), loaded, length=length, **options)


# ---------------------------------------------------------------------------------------------------- what is told


def differences(found: Sequence[Evaluated]) -> dict[tuple[str, str, str], Difference]:
    """(model, task, metric) -> by how much it is above the first model, paired by question."""
    made = {}
    for other in found[1:]:
        for task, ours in other.scores.items():
            first = found[0].scores[task]
            for metric in ours.stderr:
                if made_of := difference(by_question([ours], metric), by_question([first], metric)):
                    made[other.name, task, metric] = made_of
    return made


def to_dict(found: Sequence[Evaluated], questions: bool = False) -> list[dict[str, Any]]:
    """Plain values, for JSON."""
    compared = differences(found)
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
                        for (name, of, metric), d in compared.items()
                        if (name, of) == (one.name, task)
                    },
                }
                for task, score in one.scores.items()
            },
        }
        for one in found
    ]


def write(found: Sequence[Evaluated], file: str) -> None:
    """Writes everything, question by question, as JSON. Raises AblateError where that cannot be."""
    try:
        Path(file).expanduser().write_text(
            json.dumps(to_dict(found, questions=True), indent=1) + "\n", encoding="utf-8"
        )
    except OSError as error:
        raise AblateError(f"{file} cannot be written: {error.strerror or error}.") from None


def render(found: Sequence[Evaluated], console: Console) -> None:
    """One row for each model and metric, and below what did not fit into the context."""
    compared, rows, shown = differences(found), [], []
    for task in found[0].scores:
        for metric in found[0].scores[task].metrics:
            for one in found:
                score, paired = one.scores[task], compared.get((one.name, task, metric))
                error = score.stderr.get(metric)
                shown.append(bool(paired and paired.shown))
                rows.append(
                    (
                        task,
                        metric,
                        _short(one.name),
                        f"{len(score.questions):,}",
                        str(score.shots),
                        f"{score.metrics[metric]:.4g}",
                        "-" if error is None else f"{error:.4f}",
                        f"{paired.mean:+.4f} [{paired.low:+.4f}, {paired.high:+.4f}]" if paired else "-",
                    )
                )
    right = ("questions", "shots", "score", "stderr", "less the first")
    made = table(("task", "metric", "model", *right), rows, right)
    for row, is_shown in zip(made.rows, shown, strict=True):
        row.style = "bold" if is_shown else None
    console.print(made)
    if len(found) > 1:
        first = _short(found[0].name)
        console.print(f"less the first: paired over the questions with {first}, 95 % bootstrap interval.")
    for task in found[0].scores:
        for one in found:
            score = one.scores[task]
            if score.cut:
                console.print(
                    f"{one.name}: {score.cut} questions of {task} lost their beginning: longer than the context."
                )
            if score.long:
                console.print(f"{one.name}: {score.long} questions of {task} have answers longer than the context.")


def _short(name: str) -> str:
    """The first digits of a run's id, so that the row fits a terminal."""
    return name[:8] if re.fullmatch("[0-9a-f]{32}", name) else name
