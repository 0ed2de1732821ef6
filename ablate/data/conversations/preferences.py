"""Preference pairs as data for aligning a language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from ablate.config.bounds import MOST_LENGTH
from ablate.config.errors import DataError
from ablate.data.base import Corpus, data_kinds
from ablate.data.conversations.example_cache import load_examples
from ablate.data.conversations.packing import AnswerRows, Examples
from ablate.data.conversations.pairs import Pair, UsablePairs, read_pairs
from ablate.data.conversations.sources import RowSource, open_rows
from ablate.data.conversations.templates import TEMPLATES, Turn
from ablate.data.origins import TextOrigin
from ablate.data.overlap import check_overlap, measure_items
from ablate.data.splits import split
from ablate.data.text.tokenizers import Tokenizer, check_end_of_text, load_tokenizer, refuse_bpe


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
