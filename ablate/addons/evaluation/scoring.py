"""Scores of models on tasks, question by question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ablate.addons.evaluation.tasks import list_leaves, silence_harness
from ablate.config.errors import AblateError
from ablate.config.hub import find_model
from ablate.training.random_states import undisturbed
from ablate.verdict.questions import Question, Score

if TYPE_CHECKING:
    from ablate.data.text.tokenizers import Tokenizer


def score(
    model: nn.Module,
    tokenizer: Tokenizer,
    tasks: Mapping[str, Any],
    *,
    length: int,
    limit: int | None = None,
    batch_size: int = 16,
    progress: bool = False,
) -> dict[str, Score]:
    """Return task -> the score of `model` on its device, in evaluation mode.

    Random states and the modes of its modules are restored, so that training may go on.

    Args:
        model: token ids [batch, seq] -> logits [batch, seq, vocabulary]; padding is on the right.
        tokenizer: of the run (`ablate.addons.export.tokenizer.load_own`).
        tasks: the result of `ablate.addons.evaluation.tasks.load_tasks`.
        length: tokens of the context, `data.seq_len`.
        limit: number of questions of each task, from its start; None: all.
        batch_size: answers that are scored at a time.
        progress: whether to draw progress bars on the error output.
    """
    with undisturbed(model), silence_harness(progress):
        from ablate.addons.evaluation.harness import OwnModel

        return _evaluate(OwnModel(model, tokenizer, length, batch_size), tasks, limit)


def score_hf(
    path: str,
    tasks: Mapping[str, Any],
    *,
    limit: int | None = None,
    batch_size: int = 16,
    progress: bool = False,
    trust_remote_code: bool = False,
) -> dict[str, Score]:
    """Return task -> score, as `score`, of a model of `transformers`: a folder or a name of the hub, whose own code is
    only run with `trust_remote_code`. Raises AblateError for a model that cannot be loaded."""
    name, device = find_model(path), "cuda" if torch.cuda.is_available() else "cpu"
    with silence_harness(progress):
        from ablate.addons.evaluation.harness import CountingModel

        try:
            model = CountingModel(name, device=device, batch_size=batch_size, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            text = " ".join(str(error).split()).rstrip(".")
            hint = " Add --trust-remote-code if you trust it." if "trust_remote_code" in text else ""
            raise AblateError(f"{path} is not a model that transformers can load: {text}.{hint}") from error
        return _evaluate(model, tasks, limit)


def _evaluate(lm: Any, loaded: Mapping[str, Any], limit: int | None) -> dict[str, Score]:
    """Return the harness's score of each task and group."""
    from lm_eval.evaluator import evaluate

    outcome = evaluate(lm, loaded, limit=limit, bootstrap_iters=0)
    scores: dict[str, Score] = {}
    for task, samples in outcome["samples"].items():
        means, questions = _select_metrics(outcome["results"][task]), [_build_question(sample) for sample in samples]
        cut, long = (sum(name == task for name, _ in numbers) for numbers in (lm.cut, lm.long))
        shots = int(loaded["tasks"][task].get_config("num_fewshot") or 0)
        scores[task] = Score(task, means, _compute_errors(questions, means), questions, shots, cut, long)
    for group in loaded["groups"]:
        if means := _select_metrics(outcome["groups"].get(group, {})):
            parts = [scores[task] for task in list_leaves(group, loaded["group_map"])]
            questions = [question for part in parts for question in part.questions]
            cut, long = sum(part.cut for part in parts), sum(part.long for part in parts)
            scores[group] = Score(group, means, _compute_errors(questions, means), questions, parts[0].shots, cut, long)
    return scores


def _select_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics by plain names: "acc" for "acc,none"."""
    named = {key.partition(",")[0]: value for key, value in result.items() if "," in key}
    return {key: float(v) for key, v in named.items() if isinstance(v, (int, float)) and not key.endswith("_stderr")}


def _build_question(sample: Mapping[str, Any]) -> Question:
    values = {name: float(v) for name in sample["metrics"] if isinstance(v := sample[name], (int, float, np.number))}
    answers = [answer[0] if isinstance(answer, (tuple, list)) else answer for answer in sample["filtered_resps"]]
    return Question(
        sample["doc_hash"], values, [float(answer) for answer in answers if isinstance(answer, (int, float))]
    )


def _compute_errors(questions: Sequence[Question], means: Mapping[str, float]) -> dict[str, float]:
    """Return the standard errors of those metrics that are means over questions."""
    errors = {}
    for name, mean in means.items():
        values = [q.values[name] for q in questions if name in q.values]
        if len(values) > 1 and math.isclose(mean, math.fsum(values) / len(values), rel_tol=1e-9, abs_tol=1e-12):
            errors[name] = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return errors
