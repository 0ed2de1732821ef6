"""Preference pairs as data for aligning a language model: a prompt with a better and a worse answer, in the formats
of UltraFeedback, of chats, and of whole dialogues with a common beginning, such as Anthropic's HH."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ablate.config.bounds import MOST_LENGTH
from ablate.config.errors import DataError, did_you_mean
from ablate.data.base import Corpus, TextOrigin, data_kinds
from ablate.data.conversations.packing import AnswerRows, Examples, load_examples
from ablate.data.conversations.rows import TEMPLATES, Row, RowSource, Template, Turn, open_rows, read_messages
from ablate.data.overlap import check_overlap, measure_items
from ablate.data.readers import explain_missing_column, name_json_type
from ablate.data.splits import split
from ablate.data.text.tokenizers import Tokenizer, check_end_of_text, load_tokenizer, refuse_bpe

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


@dataclass(frozen=True)
class Pairs:
    """Preference pairs and their lengths."""

    items: Sequence[Pair]
    prompts: NDArray[np.int64]
    """Tokens of each prompt [pairs]."""
    longest: NDArray[np.int64]
    """Tokens of each prompt with the longer of its answers and its end of text [pairs]."""

    def __len__(self) -> int:
        return len(self.items)

    def select(self, numbers: NDArray[np.int64]) -> Pairs:
        """Return the pairs `numbers`, in that order."""
        return Pairs([self.items[i] for i in numbers], self.prompts[numbers], self.longest[numbers])

    def select_fitting(self, context: int, answer: int | None = None) -> list[Pair]:
        """Return the pairs of at most `context` tokens; if `answer` is given, with an answer of so many tokens instead
        of their own."""
        tokens = self.longest if answer is None else self.prompts + answer
        return [pair for pair, fits in zip(self.items, tokens <= context, strict=True) if fits]


@dataclass(frozen=True)
class PairCorpus(Corpus):
    """A corpus of preference pairs: its rows contain the chosen answers."""

    train_pairs: Pairs = field(kw_only=True)
    """The training pairs."""
    val_pairs: Pairs = field(kw_only=True)
    """The evaluation pairs; none is among `train_pairs`."""
    left_out: str = field(kw_only=True)
    """The number of pairs from which nothing can be learnt, by reason, as a part of a sentence; "" if there are none.
    """

    def measure_trivial_loss(self) -> None:
        """Return None: alignment has other losses."""


@data_kinds.register
class Preferences(TextOrigin):
    """Prompts with a better and a worse answer, in the formats of UltraFeedback, of chats and of Anthropic's HH. With
    `align`, training uses both answers; without it a model is fine-tuned on the better answer, as on instructions.

    Files are .json (a list of objects), .jsonl, .ndjson, .json-lines, .parquet or .arrow. A row has chosen and
    rejected: texts with a prompt, chats, messages that follow conversations, or, without another column of text, two
    whole dialogues, whose common beginning is the prompt. Pairs with equal answers or an empty one are left out.
    """

    kind: Literal["preferences"] = "preferences"
    task: ClassVar[str] = "language_modeling"
    template: Literal["alpaca", "plain"] = "alpaca"
    """The text around a prompt. alpaca: Alpaca's; plain: a line end after it; not around whole dialogues in text."""
    tokenizer: str = "bytes"
    """The tokenizer of the model that is aligned: "bytes", a local tokenizer.json, a local SentencePiece *.model, or
    the name of a repository on the hub. `ablate export --to hf` writes a run's tokenizer, including one trained on its
    text."""
    seq_len: int = Field(256, ge=1, le=MOST_LENGTH)
    """Maximum tokens of a prompt with its answer. Longer pairs are left out, and their number is reported."""
    val_fraction: float = Field(0.1, gt=0, lt=1)
    """The share of the pairs that is held out for evaluation."""

    @model_validator(mode="after")
    def _takes_the_tokenizer_of_a_model(self) -> Preferences:
        refuse_bpe(self.tokenizer, "pairs")
        return self

    def load(self, cache: Path) -> PairCorpus:
        tokenizer = load_tokenizer(self.tokenizer, self.end_of_text)
        check_end_of_text(tokenizer, self.end_of_text, self.tokenizer)
        source = open_rows(self.locate(self.train_split), cache)
        pairs = read_pairs(source, TEMPLATES[self.template], source.name)
        items = [pair for _, pair in pairs.rows]
        chosen, rejected = (
            self._load_examples(cache, source, pairs, tokenizer, answer) for answer in ("chosen", "rejected")
        )
        prompts = chosen.lengths - _count_answers(chosen)
        everything = Pairs(items, prompts, np.maximum(chosen.lengths, rejected.lengths))
        train_numbers, val_numbers = split(len(items), self.val_fraction, self.split_seed, "pairs")
        overlap = measure_items((items[i] for i in train_numbers), (items[i] for i in val_numbers))
        note = pairs.describe_left_out() + check_overlap(overlap, self.max_overlap, "the held-out pairs", held_out=True)
        rows, held_rows = (
            self._build_rows(chosen.select(numbers), source.name) for numbers in (train_numbers, val_numbers)
        )
        return PairCorpus(
            train=rows,
            val=held_rows,
            fingerprint=source.fingerprint,
            classes=tokenizer.vocab_size,
            shape=(self.seq_len,),
            bytes_per_token=held_rows.measure_bytes_per_token(),
            description=(
                f"preferences ({self.tokenizer}): {len(train_numbers):,} training pairs, {len(val_numbers):,} held out"
                f"{note}"
            ),
            padded=True,
            train_pairs=everything.select(train_numbers),
            val_pairs=everything.select(val_numbers),
            left_out=pairs.describe_left_out(),
        )

    def _load_examples(
        self, cache: Path, source: RowSource, pairs: UsablePairs, tokenizer: Tokenizer, answer: str
    ) -> Examples:
        def read(where: str, row: dict[str, Any]) -> list[Turn]:
            pair = row["pair"]
            return [Turn(pair.prompt, False), Turn(getattr(pair, answer), True)]

        rows = RowSource(
            source.name, source.fingerprint, lambda: ((where, {"pair": pair}) for where, pair in pairs.rows)
        )
        return load_examples(cache, rows, tokenizer, read, ["usable preferences", answer, self.template])

    def _build_rows(self, examples: Examples, name: str) -> AnswerRows:
        kept, _, _ = examples.cut(self.seq_len + 1)
        if not len(kept):
            raise DataError(
                f"No prompt of {name} leaves room for an answer within seq_len={self.seq_len}: the prompts have "
                f"{(examples.lengths - _count_answers(examples)).min():,} tokens or more. Set data.seq_len higher, or "
                "data.template=plain."
            )
        return AnswerRows(kept, self.seq_len, kept.lengths)


def _count_answers(examples: Examples) -> NDArray[np.int64]:
    """Return the number of tokens of the answers of each example, with their ends of text [examples]."""
    before = np.append(0, np.cumsum(examples.answers))
    ends = np.cumsum(examples.lengths)
    counts: NDArray[np.int64] = before[ends] - before[ends - examples.lengths]
    return counts
