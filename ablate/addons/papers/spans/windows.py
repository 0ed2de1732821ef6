"""Questions with their texts as tokens, in windows that a model can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.addons.papers.spans.questions import SpanQuestion
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
