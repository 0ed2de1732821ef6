"""Instructions and their answers: data for fine-tuning a language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from ablate.config.bounds import MOST_LENGTH
from ablate.config.errors import DataError
from ablate.data.base import Corpus, TwoOrigins, data_kinds
from ablate.data.conversations.packing import AnswerRows, Examples, load_examples
from ablate.data.conversations.rows import TEMPLATES, Columns, RowSource, Turn, open_rows, read_turns
from ablate.data.files import combine_fingerprints
from ablate.data.order import draw_permutation
from ablate.data.overlap import check_overlap, measure_items
from ablate.data.splits import split
from ablate.data.text.tokenizers import Tokenizer, check_end_of_text, load_tokenizer, refuse_bpe


@data_kinds.register
class Instructions(TwoOrigins):
    """Instructions with answers, or chats: only the answers, each with its end of text, count in the loss.

    Files are .json (a list of objects), .jsonl, .ndjson, .json-lines, .parquet or .arrow. A row contains instruction,
    output and optionally input; or a chat in messages or conversations, all of whose answers are trained on.
    """

    kind: Literal["instructions"] = "instructions"
    task: ClassVar[str] = "language_modeling"
    columns: Columns = Columns()
    """The names of the columns."""
    template: Literal["alpaca", "plain"] = "alpaca"
    """The text around an instruction. alpaca: Alpaca's prompt, which recipes on Commonsense170K use; plain: a line end
    after it."""
    tokenizer: str = "bytes"
    """The tokenizer of the model that is fine-tuned: "bytes", a local tokenizer.json, a local SentencePiece *.model, or
    the name of a repository on the hub. `ablate export --to hf` writes a run's tokenizer, including one trained on its
    text."""
    seq_len: int = Field(256, ge=1, le=MOST_LENGTH)
    """Maximum tokens of an input. Longer examples are cut, and their number is reported; an example of which no answer
    would remain is left out."""
    layout: Literal["documents", "packed"] = "documents"
    """documents: one example in each row, padded. packed: as many whole examples as fit, in a fixed random order; each
    attends to those before it. The loss ignores padding and prompts; budgets and curves count them, since they count
    positions."""

    @model_validator(mode="after")
    def _takes_the_tokenizer_of_a_model(self) -> Instructions:
        refuse_bpe(self.tokenizer, "instructions")
        return self

    def load(self, cache: Path) -> Corpus:
        tokenizer = self.load_tokenizer(cache)
        check_end_of_text(tokenizer, self.end_of_text, self.tokenizer)
        whole, more = self._open_sources(cache)
        examples, note = self._cut_examples(self._load_examples(cache, whole, tokenizer), whole.name)
        if more is None:
            train, val = (
                examples.select(n) for n in split(len(examples), self.val_fraction, self.split_seed, "examples")
            )
        else:
            train, more_examples = examples, self._load_examples(cache, more, tokenizer)
            val, more_note = self._cut_examples(more_examples, more.name)
            note += more_note
        overlap = measure_items(train.iterate(), val.iterate())
        note += check_overlap(overlap, self.max_overlap, "the validation examples", held_out=more is None)
        rows, held = self._build_rows(train), self._build_rows(val)
        unit = "rows of examples" if self.layout == "packed" else "examples"
        return Corpus(
            train=rows,
            val=held,
            fingerprint=combine_fingerprints([whole.fingerprint, *([more.fingerprint] if more else [])]),
            classes=tokenizer.vocab_size,
            shape=(self.seq_len,),
            bytes_per_token=held.measure_bytes_per_token(),
            description=f"instructions: {len(train.tokens):,} tokens ({self.tokenizer}) to train on, "
            f"{int(train.answers.sum()):,} of them of answers, {len(rows):,} training and {len(held):,} validation "
            f"{unit} of up to {self.seq_len} tokens{note}",
            padded=True,
        )

    def load_tokenizer(self, cache: Path) -> Tokenizer:
        """Return the tokenizer. Raises DataError if it cannot be found."""
        return load_tokenizer(self.tokenizer, self.end_of_text)

    def _load_examples(self, cache: Path, source: RowSource, tokenizer: Tokenizer) -> Examples:
        def read(where: str, row: dict[str, Any]) -> list[Turn]:
            return read_turns(where, row, self.columns, TEMPLATES[self.template])

        return load_examples(cache, source, tokenizer, read, [self.columns.model_dump(), self.template])

    def _open_sources(self, cache: Path) -> tuple[RowSource, RowSource | None]:
        """Open the training data, and the validation data if it is named."""
        origin = self.locate_validation()
        whole, more = open_rows(self.locate(self.train_split), cache), open_rows(origin, cache) if origin else None
        if more and more.fingerprint == whole.fingerprint:
            raise DataError(f"The validation data is the training data: {more.name}. Choose other validation data.")
        return whole, more

    def _cut_examples(self, examples: Examples, name: str) -> tuple[Examples, str]:
        """Return the examples that fit `seq_len`, and a note on the others. Raises DataError if none fits."""
        kept, cut, out = examples.cut(self.seq_len + 1)
        if not len(kept):
            raise DataError(
                f"No example of {name} has an answer within seq_len={self.seq_len}: with their prompts the examples "
                f"have up to {examples.lengths.max():,} tokens. Set data.seq_len higher, or data.template=plain."
            )
        note = f", {cut:,} answers cut" if cut else ""
        return kept, note + (f", {out:,} left out because their answers begin after it" if out else "")

    def _build_rows(self, examples: Examples) -> AnswerRows:
        if self.layout == "documents":
            return AnswerRows(examples, self.seq_len, examples.lengths)
        mixed = examples.select(draw_permutation(len(examples), self.split_seed, 1))
        return AnswerRows(mixed, self.seq_len, mixed.pack(self.seq_len + 1))


# 170,420 questions of eight commonsense tasks with their answers, by T5's tokens, as the models of the papers
data_kinds.preset("commonsense170k", "instructions", dataset="zwhe99/commonsense_170k", tokenizer="t5-base")
