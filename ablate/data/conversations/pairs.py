"""Preference pairs: a prompt with a better and a worse answer, in the formats of UltraFeedback and of chats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from ablate.config.errors import DataError, did_you_mean
from ablate.data.conversations.sources import Row
from ablate.data.conversations.templates import Template, read_messages
from ablate.data.readers import name_json_type

FORMAT = (
    "A pair has chosen and rejected, each a text, a message or a chat, and the prompt in prompt, in conversations or "
    "messages, or before the last answer of both"
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


def read_pairs(rows: Iterable[Row], template: Template, name: str) -> list[Pair]:
    """Return the pairs in `rows`. Raises DataError for fewer than two pairs: one is needed for training and one for
    evaluation."""
    pairs = [read_pair(where, row, template) for where, row in rows]
    if len(pairs) < 2:
        raise DataError(f"{name} has {len(pairs)} preference pairs; at least 2 are needed.")
    return pairs


def read_pair(where: str, row: dict[str, Any], template: Template) -> Pair:
    """Return the pair in a row. Raises DataError with the row's location and the missing part."""
    for column in ("chosen", "rejected"):
        if column not in row:
            there = ", ".join(map(repr, row)) or "none"
            raise DataError(f"{where}: no column {column!r}. Columns: {there}. {FORMAT}.{did_you_mean(column, row)}")
    (before, chosen), (other, rejected) = (
        _read_answer(where, row[column], column) for column in ("chosen", "rejected")
    )
    _check_same_question(where, before, other)
    before = before or other
    context = next((row[name] for name in _CONTEXTS if name in row), None)
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
    return Pair(_format_chat(messages, template), chosen, rejected)


def _check_same_question(where: str, chosen: Sequence[Message], rejected: Sequence[Message]) -> None:
    """Raise DataError if both answers have a chat and the chats differ before the answer."""
    if not chosen or not rejected or chosen == rejected:
        return
    sides = zip_longest(chosen, rejected, fillvalue=("none", ""))
    number, (one, two) = next((number, pair) for number, pair in enumerate(sides, 1) if pair[0] != pair[1])
    raise DataError(
        f"{where}: 'chosen' and 'rejected' answer different prompts; message {number} is {_quote(one)} and "
        f"{_quote(two)}. A pair must have two answers to the same messages"
    )


def _quote(message: Message) -> str:
    """Return a message for an error text, shortened if it is long."""
    role, text = message
    return f"{role}: {text[:60]!r}{'...' if len(text) > 60 else ''}" if role != "none" else "missing"


def _read_answer(where: str, value: Any, column: str) -> tuple[list[Message], str]:
    """Return (the messages before an answer, the answer)."""
    if isinstance(value, str):
        return [], value
    if not isinstance(value, (dict, list)) or not value:
        raise DataError(f"{where}: {column!r} must be a text, a message or a chat, but is {name_json_type(value)}")
    *before, (role, text) = read_messages(f"{where}, {column!r}", value if isinstance(value, list) else [value])
    if role != "assistant":
        raise DataError(f"{where}: {column!r} does not end with an answer of the assistant")
    return before, text


def _format_chat(messages: list[Message], template: Template) -> str:
    """Return the text of a chat up to the answer to its last message."""
    text, first = "", True
    for role, content in messages:
        if role == "user":
            text, first = text + template.format_question(content, first=first), False
        else:
            text += f"{content}\n\n"
    return text
