"""The answers that a model's logits choose, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ablate.addons.papers.spans.questions import SpanQuestion
from ablate.addons.papers.spans.windows import Windows

N_BEST, LONGEST = 20, 30
"""First and last tokens that are combined, and tokens of the longest answer: `n_best_size` and `max_answer_length` of
transformers' run_qa.py."""


class Spans(NamedTuple):
    """The best span of each window."""

    scores: Tensor
    """[windows]: the sum of the logits of its first and last token; -inf without any."""
    first: Tensor
    """int64 [windows]: its first token."""
    last: Tensor
    """int64 [windows]: its last token."""


def find_spans(begins: Tensor, ends: Tensor, is_text: Tensor, there: Tensor) -> Spans:
    """Return the best span in each window: the one with the highest sum of logits among all pairs of the `N_BEST`
    likeliest first and last tokens that are a span of the text of at most `LONGEST` tokens.

    Args:
        begins: logits of the first token, [windows, length].
        ends: logits of the last token, [windows, length].
        is_text: bool [windows, length]: the tokens of the text, and not of the question.
        there: bool [windows, length]: false at padding.
    """
    best = []
    for logits in (begins, ends):
        ranked = logits.float().masked_fill(~there, -torch.inf).sort(dim=1, descending=True, stable=True)
        tokens = ranked.indices[:, :N_BEST]
        values = ranked.values[:, :N_BEST].masked_fill(~is_text.gather(1, tokens), -torch.inf)
        best.append((tokens, values))
    (first, begin), (last, end) = best
    length = last[:, None, :] - first[:, :, None]
    sums = begin[:, :, None] + end[:, None, :]
    scores, pairs = sums.masked_fill((length < 0) | (length >= LONGEST), -torch.inf).flatten(1).max(1)
    width = last.shape[1]
    return Spans(
        scores,
        first.gather(1, (pairs // width)[:, None])[:, 0],
        last.gather(1, (pairs % width)[:, None])[:, 0],
    )


def choose_answers(windows: Windows, spans: Spans) -> list[str]:
    """Return the text of the best span of all windows of each question; "" without any."""
    best: dict[int, tuple[float, str]] = {}
    rows = torch.arange(len(windows))
    begins = windows.characters[rows, spans.first.cpu(), 0].tolist()
    ends = windows.characters[rows, spans.last.cpu(), 1].tolist()
    for owner, score, begin, end in zip(windows.owners.tolist(), spans.scores.tolist(), begins, ends, strict=True):
        if score > best.get(owner, (float("-inf"), ""))[0]:
            best[owner] = score, windows.questions[owner].context[begin:end]
    return [best.get(number, (0.0, ""))[1] for number in range(len(windows.questions))]


def score_answers(questions: Sequence[SpanQuestion], answers: Sequence[str]) -> dict[str, float]:
    """Return `exact_match` and `f1` of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250) from 0 to 1, as all scores of
    tasks are: after lower-casing and without punctuation and articles, each the maximum over the answers that count as
    right, averaged over questions."""
    from torchmetrics.functional.text import squad

    scores = squad(
        [{"id": question.id, "prediction_text": answer} for question, answer in zip(questions, answers, strict=True)],
        [
            {"id": question.id, "answers": {"text": list(question.answers), "answer_start": list(question.starts)}}
            for question in questions
        ],
    )
    return {name: float(value) / 100 for name, value in scores.items()}  # torchmetrics has percent
