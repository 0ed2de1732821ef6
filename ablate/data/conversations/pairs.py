"""Preference pairs: a prompt with a better and a worse answer, in the formats of UltraFeedback, of chats, and of whole
dialogues with a common beginning, such as Anthropic's HH."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

from ablate.config.errors import DataError, did_you_mean
from ablate.data.conversations.sources import Row
from ablate.data.conversations.templates import Template, read_messages
from ablate.data.readers import explain_missing_column, name_json_type

FORMAT = (
    "A pair has chosen and rejected, each a text, a message or a chat, and the prompt in prompt, in conversations or "
    "messages, or as the common beginning of both"
)
_CONTEXTS = ("conversations", "messages")

Message = tuple[str, str]
"""Role and text."""


class Pair(NamedTuple):
    """Two answers to the same prompt."""

    prompt: str
    """The text up to the answer, formatted by a template."""
    chosen: str
    rejected: str

    @property
    def fault(self) -> str:
        """Why nothing can be learnt from the pair; "" if something can."""
        if self.chosen == self.rejected:
            return "equal answers"
        return "" if self.chosen.strip() and self.rejected.strip() else "an empty answer"


@dataclass(frozen=True)
class UsablePairs:
    """The pairs of a file or dataset from which something can be learnt."""

    rows: list[tuple[str, Pair]]
    """Location and pair."""
    left_out: Counter[str]
    """Fault -> number of pairs that have it."""

    def describe_left_out(self) -> str:
        """Return the number of pairs left out, by reason, as a part of a sentence; "" if there are none."""
        return "".join(f", {number:,} left out for {fault}" for fault, number in sorted(self.left_out.items()))


def read_pairs(rows: Iterable[Row], template: Template, name: str) -> UsablePairs:
    """Return the pairs in `rows`. Raises DataError for fewer than two usable pairs: one is needed for training and one
    for evaluation."""
    usable, left_out = [], Counter[str]()
    for where, row in rows:
        pair = read_pair(where, row, template)
        if pair.fault:
            left_out[pair.fault] += 1
        else:
            usable.append((where, pair))
    pairs = UsablePairs(usable, left_out)
    if len(usable) < 2:
        raise DataError(f"{name} has {len(usable)} preference pairs{pairs.describe_left_out()}; at least 2 are needed.")
    return pairs


def read_pair(where: str, row: dict[str, Any], template: Template) -> Pair:
    """Return the pair in a row. Raises DataError with the row's location and the missing part."""
    for column in ("chosen", "rejected"):
        if column not in row:
            raise explain_missing_column(where, column, row.keys(), f" {FORMAT}.")
    chosen, rejected = (_read_side(where, row[column], column) for column in ("chosen", "rejected"))
    context = next((row[name] for name in _CONTEXTS if name in row), None)
    if isinstance(chosen, str) and isinstance(rejected, str) and context is None and "prompt" not in row:
        return _split_texts(where, row)
    before, *answers = _split_chats(where, chosen, rejected, template)
    if context is not None:
        messages = read_messages(where, context)
    elif before:
        messages = before
    elif isinstance(row.get("prompt"), str):
        messages = [("user", row["prompt"])]
    else:
        there = ", ".join(map(repr, row))
        raise DataError(f"{where}: no prompt. Columns: {there}. {FORMAT}.{did_you_mean('prompt', row)}")
    if not messages or messages[-1][0] != "user":
        raise DataError(f"{where}: the prompt does not end with a message of the user")
    return Pair(_format_chat(messages, template), *answers)


def _split_texts(where: str, row: dict[str, Any]) -> Pair:
    """Return the pair of two whole dialogues as texts: the prompt is their common beginning, without a space at its
    end, as in `extract_prompt` of TRL, and is in no template. Raises DataError without a common beginning, and if the
    prompt may be in another column."""
    chosen, rejected = row["chosen"], row["rejected"]
    others = [name for name, value in row.items() if name not in ("chosen", "rejected") and isinstance(value, str)]
    length = _count_common(chosen, rejected)
    prompt = chosen[:length]
    if length < min(len(chosen), len(rejected)):
        prompt = prompt.removesuffix(" ")
    if others or not prompt.strip():
        reason = "'chosen' and 'rejected' have no common beginning"
        if others:
            reason = "their common beginning is not taken as the prompt, since other columns of text may contain it"
        there = ", ".join(map(repr, row))
        raise DataError(f"{where}: no prompt. Columns: {there}; {reason}. {FORMAT}.{did_you_mean('prompt', row)}")
    return Pair(prompt, chosen[len(prompt) :], rejected[len(prompt) :])


def _split_chats(
    where: str, chosen: str | list[Message], rejected: str | list[Message], template: Template
) -> tuple[list[Message], str, str]:
    """Return (the messages before both answers, the chosen answer, the rejected one). Chats that differ before their
    last messages have as answers all that follows the question that both begin with. Raises DataError if there is none.
    """
    if isinstance(chosen, str) or isinstance(rejected, str):
        before = [message for side in (chosen, rejected) if isinstance(side, list) for message in side[:-1]]
        one, two = (side if isinstance(side, str) else side[-1][1] for side in (chosen, rejected))
        return before, one, two
    if not chosen[:-1] or not rejected[:-1] or chosen[:-1] == rejected[:-1]:
        return chosen[:-1] or rejected[:-1], chosen[-1][1], rejected[-1][1]
    length = _count_common(chosen, rejected)
    if not length or chosen[length - 1][0] != "user":
        sides = zip_longest(chosen[:-1], rejected[:-1], fillvalue=("none", ""))
        number, (first, second) = next((number, pair) for number, pair in enumerate(sides, 1) if pair[0] != pair[1])
        raise DataError(
            f"{where}: 'chosen' and 'rejected' answer different prompts; message {number} is {_quote(first)} and "
            f"{_quote(second)}. A pair must have two answers to the same messages"
        )
    one, two = (_format_chat(side[length:-1], template, first=False) + side[-1][1] for side in (chosen, rejected))
    return chosen[:length], one, two


def _count_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common beginning."""
    differing = (number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differing, min(len(one), len(other)))


def _quote(message: Message) -> str:
    """Return a message for an error text, shortened if it is long."""
    role, text = message
    return f"{role}: {text[:60]!r}{'...' if len(text) > 60 else ''}" if role != "none" else "missing"


def _read_side(where: str, value: Any, column: str) -> str | list[Message]:
    """Return a text, or the messages of a chat that ends with an answer."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (dict, list)) or not value:
        raise DataError(f"{where}: {column!r} must be a text, a message or a chat, but is {name_json_type(value)}")
    messages = read_messages(f"{where}, {column!r}", value if isinstance(value, list) else [value])
    if messages[-1][0] != "assistant":
        raise DataError(f"{where}: {column!r} does not end with an answer of the assistant")
    return messages


def _format_chat(messages: Sequence[Message], template: Template, first: bool = True) -> str:
    """Return the text of a chat up to the answer to its last message; `first`: it is the start of an example."""
    text = ""
    for role, content in messages:
        if role == "user":
            text, first = text + template.format_question(content, first=first), False
        else:
            text += f"{content}\n\n"
    return text
