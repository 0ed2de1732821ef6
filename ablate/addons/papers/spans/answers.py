"""Questions with their texts as tokens, in windows that a model can read; the answers that its logits choose, and their
scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.addons.papers.spans.squad import SpanQuestion
from ablate.config.errors import DataError
from ablate.config.formatting import join_first

LENGTH, OVERLAP = 384, 128
"""Tokens of a window, and tokens of the text that neighbouring windows share: `max_seq_length` and `doc_stride` of
transformers' run_qa.py."""


@dataclass(frozen=True)
class Windows:
    """Questions, each with a part of its text; several windows of a question if the text is long."""

    questions: Sequence[SpanQuestion]
    inputs: dict[str, Tensor]
    """Argument of a model -> its values [windows, length]; padding is on the right, where `attention_mask` is 0."""
    owners: Tensor
    """int64 [windows]: the number of the question."""
    characters: Tensor
    """int64 [windows, length, 2]: first character in the text, and last + 1, of each token; -1 for a token that is not
    of the text."""
    targets: Tensor
    """int64 [windows, 2]: first and last token of the first answer; 0 and 0 in a window without it, as in training."""

    def __len__(self) -> int:
        return len(self.owners)

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return int(self.characters.shape[1])


def build_windows(questions: Sequence[SpanQuestion], tokenizer: Any, accepted: Sequence[str], longest: int) -> Windows:
    """Return the windows of `questions`: each is the question, then a part of its text.

    Args:
        tokenizer: of transformers, in its fast form, which knows the characters of its tokens.
        accepted: arguments that the model accepts.
        longest: positions of the model.

    Raises DataError, with their ids, for questions that leave no room for their text.
    """
    length = min(LENGTH, longest)
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in accepted]
    inputs: dict[str, list[Tensor]] = {name: [] for name in names}
    owners, characters, targets, crowded = [], [], [], []
    special = tokenizer.num_special_tokens_to_add(pair=True)
    for number, question in enumerate(questions):
        text = question.question.lstrip()
        room = length - special - len(tokenizer(text, add_special_tokens=False).input_ids)
        if room < 1:
            crowded.append(question.id)
            continue
        windows = tokenizer(
            [text],
            [question.context],
            truncation="only_second",
            max_length=length,
            stride=OVERLAP if room > OVERLAP else room // 2,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids="token_type_ids" in names,
        )
        for window, offsets in enumerate(windows["offset_mapping"]):
            of_text = torch.tensor([part == 1 for part in windows.sequence_ids(window)])
            place = torch.tensor(offsets).masked_fill(~of_text[:, None], -1)
            for name in names:
                inputs[name].append(torch.tensor(windows[name][window]))
            owners.append(number)
            characters.append(place)
            targets.append(_locate_answer(place, question))
    if crowded:
        raise DataError(
            f"{len(crowded):,} questions fill the {length} tokens of a window, without room for their text: "
            f"{join_first(crowded, 3)}. Shorten or remove them."
        )
    padding = {"input_ids": tokenizer.pad_token_id or 0, "attention_mask": 0, "token_type_ids": 0}
    return Windows(
        questions,
        {name: pad_sequence(rows, True, padding[name]) for name, rows in inputs.items()},
        torch.tensor(owners),
        pad_sequence(characters, True, -1),
        torch.tensor(targets),
    )


def _locate_answer(characters: Tensor, question: SpanQuestion) -> tuple[int, int]:
    """Return the first and the last token of the first answer; (0, 0) if it is not entirely in the window."""
    begin, end = question.starts[0], question.starts[0] + len(question.answers[0])
    (tokens,) = (characters[:, 0] >= 0).nonzero(as_tuple=True)
    first, last = characters[tokens].unbind(1)
    if not len(tokens) or first[0] > begin or last[-1] < end:
        return 0, 0
    return int(tokens[first <= begin][-1]), int(tokens[last >= end][0])


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
