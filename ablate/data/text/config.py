"""Text for language models: Python's own documentation, which is always available, the user's files, and datasets."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from ablate.config.bounds import MOST_ITEMS, MOST_LENGTH
from ablate.config.errors import DataError
from ablate.data.base import Corpus, DataConfig, Documents, FilesOrDataset, TwoOrigins, ValSet, data_kinds
from ablate.data.files import combine_fingerprints
from ablate.data.overlap import check_overlap
from ablate.data.splits import split_text
from ablate.data.text.bpe import check_bpe_name, load_or_train, parse_bpe_size
from ablate.data.text.layouts import DatasetBuilder, Windows
from ablate.data.text.sources import BlockSplit, FileSource, HashSplit, Side, Source, compare, open_source
from ablate.data.text.tokenizers import KNOWN_SIZES, Tokenizer, check_end_of_text
from ablate.data.text.tokens import choose_dtype

LETTERS_PER_TOKEN = 6
"""Bytes: more than the mean length of a token in most tokenizers."""
MANY = 20
"""Minimum mean number of held-out documents if each is held out or not by its hash."""
VAL_TOKENS = 10_000_000
"""Default number of validation tokens of a dataset: the minimum that the papers evaluate on."""


@data_kinds.register
class Topics(DataConfig):
    """Half a megabyte of English prose that is part of Python: the help topics of `pydoc`, byte by byte.

    Documents are the topics in the order of their names, each ended by a zero byte. The text differs between Python
    versions, and its fingerprint with it. Contiguous parts of all topics together are held out.
    """

    kind: Literal["topics"] = "topics"
    task: ClassVar[str] = "language_modeling"
    seq_len: int = Field(128, ge=1, le=MOST_LENGTH)
    """Bytes of one training example. A window has one byte more, which is the target of the last byte."""

    def count_prepared_bytes(self, classes: int) -> int | None:
        return 0

    def load(self, cache: Path) -> Corpus:
        try:
            topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        except ImportError as error:
            raise DataError("This Python comes without pydoc_data.topics, which data kind topics reads.") from error
        documents = [topics[name].encode() + b"\0" for name in sorted(topics)]
        stream = np.frombuffer(b"".join(documents), np.uint8)
        ends = np.cumsum([len(document) for document in documents]).tolist()
        size = self.seq_len + 1
        sides = split_text(ends, self.val_fraction, self.split_seed, size)
        texts = [np.concatenate([stream[:0], *(stream[first:last] for first, last in side)]) for side in sides]
        for text, what in zip(texts, ("training", "validation"), strict=True):
            if len(text) < size:
                raise DataError(
                    f"Too little data: {len(text):,} bytes of the topics are for {what} "
                    f"(val_fraction={self.val_fraction}), one window of seq_len={self.seq_len} needs {size:,}."
                )
        train, val = (Windows(text, self.seq_len, np.arange(len(text) // size)) for text in texts)
        return Corpus(
            train=train,
            val=val,
            fingerprint=hashlib.sha256(stream.tobytes()).hexdigest(),
            classes=256,
            shape=(self.seq_len,),
            bytes_per_token=1.0,
            description=f"topics: {len(stream):,} bytes, {len(train):,} training and {len(val):,} validation windows "
            f"of {self.seq_len}",
        )


class ExtraText(FilesOrDataset):
    """A further validation set: files, or a split of a dataset."""

    split: str = "validation"
    """The dataset's split."""
    column: str | None = None
    """The column of the text. None: `data.column`."""
    tokens: int | None = Field(None, ge=1, le=MOST_ITEMS)
    """Number of tokens to use, up to the end of a document. None: as many as the main validation set has."""

    def source(self, column: str, cache: Path) -> Source:
        """Return the source of its documents; `column` is used if it sets none of its own. Raises DataError."""
        return open_source(self.locate(self.split), self.column or column, cache)


@data_kinds.register
class Text(Documents, TwoOrigins):
    """Your own text files or a dataset of the hub, tokenised once and kept in the cache.

    File formats by suffix: .txt and .md (a file is a document), .jsonl, .ndjson and .json-lines (a line is a document),
    each also compressed, .parquet and .arrow (a row is a document). Each document ends with the end-of-text token of
    the tokenizer (`end_of_text`), or with a zero byte for "bytes". A text file of more than a megabyte is encoded in
    parts cut at line ends. Without a validation set about `val_fraction` of the text is held out: whole documents,
    selected by their hash. If there are few documents (fewer than 20 / `val_fraction` in files), contiguous blocks are
    held out, which begin and end at the border of a document if one is near; otherwise a window of text next to a block
    is not used. With `layout: documents` rows of files are held out at random.
    """

    kind: Literal["text"] = "text"
    task: ClassVar[str] = "language_modeling"
    tokenizer: str = "bytes"
    """"bytes", a local tokenizer.json, a local SentencePiece *.model, the name of a repository on the hub, or bpe-N: a
    byte-level BPE of N tokens, trained on the first 100 MB of the training text."""
    column: str = "text"
    """The column of the text in JSON lines, tables and datasets."""
    seq_len: int = Field(256, ge=1, le=MOST_LENGTH)
    """Tokens of one training example. A window has one token more, which is the target of the last token."""
    layout: Literal["packed", "documents"] = "packed"
    """packed: windows of the stream of all documents. documents: one document in each row, cut or padded. The loss
    ignores padding; budgets and curves count it, since they count positions."""
    train_tokens: int | None = Field(None, ge=1, le=MOST_ITEMS)
    """Number of tokens of the training text to use, up to the end of a document. None: all."""
    val_tokens: int | None = Field(None, ge=1, le=MOST_ITEMS)
    """Number of tokens of the validation set to use, from its start. None: all tokens of files, ten million of a
    dataset. trainer.val_samples sets how many of them each validation uses, unless a number is given here."""
    val_sets: dict[str, ExtraText] = {}
    """Further validation sets by name, such as {wiki: {files: wiki.jsonl}}, reported as val/wiki/loss and so on."""

    @field_validator("val_sets", mode="before")
    @classmethod
    def _check_removed(cls, val_sets: Any) -> Any:
        missing = [name for name, part in val_sets.items() if part is None] if isinstance(val_sets, Mapping) else []
        if missing:
            there = ", ".join(name for name in val_sets if name not in missing) or "none"
            raise ValueError(f"there is no validation set {', '.join(missing)} to remove. Validation sets: {there}")
        return val_sets

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # a mapping has none of its own

    @property
    def wanted_val_samples(self) -> int | None:
        if self.val_tokens is None or (self.dataset is not None and self.val_tokens == VAL_TOKENS):
            return None
        return max(1, self.val_tokens // (self.seq_len + 1))

    @property
    def most_val_samples(self) -> int | None:
        return self._count_samples(self._most_val_tokens)

    @property
    def most_val_sizes(self) -> list[int | None]:
        further = (part.tokens or self._most_val_tokens for part in self.val_sets.values())
        return [self.most_val_samples, *map(self._count_samples, further)]

    @property
    def _most_val_tokens(self) -> int | None:
        return self.val_tokens or (VAL_TOKENS if self.dataset is not None else None)

    def count_prepared_bytes(self, classes: int) -> int | None:
        """See `DataConfig`: tokens, and for rows 16 bytes each, without the borders of documents in a stream."""
        most = self._most_val_tokens
        sets = [self.train_tokens, most, *(part.tokens or most for part in self.val_sets.values())]
        known = [tokens for tokens in sets if tokens is not None]
        width: float = choose_dtype(KNOWN_SIZES.get(self.tokenizer, classes)).itemsize
        width += 16 / (self.seq_len + 1) if self.layout == "documents" else 0
        return round(sum(known) * width) if len(known) == len(sets) else None

    def _count_samples(self, tokens: int | None) -> int | None:
        return None if tokens is None else max(1, tokens // (self.seq_len + 1))

    @property
    def val_names(self) -> tuple[str, ...]:
        return tuple(self.val_sets)

    @model_validator(mode="after")
    def _fits_together(self) -> Text:
        if odd := [name for name in self.val_sets if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name)]:
            text = "must consist of letters from A to Z, digits, hyphens and underscores"
            raise ValueError(f"the name of a validation set {text}, which {', '.join(map(repr, odd))} does not")
        if self.val_split is not None and self.val_split == self.train_split:
            raise ValueError(
                f"train_split and val_split are both {self.val_split!r}; choose another split for validation"
            )
        if "ema" in self.val_sets:
            raise ValueError("a validation set cannot be called ema: val/ema/ is used for the averaged weights")
        check_bpe_name(self.tokenizer)
        return self

    def load(self, cache: Path) -> Corpus:
        whole = self._open_whole(cache)
        train, val = self._open_sides(whole, cache)
        extra_sources = {name: config.source(self.column, cache) for name, config in self.val_sets.items()}
        for name, source in extra_sources.items():
            self._check_apart(whole, source, f"val_sets.{name}")
        tokenizer = self.load_tokenizer(cache, train)
        if tokenizer.end_of_text is None and any(
            source.has_documents(2) for source in (whole, val or whole, *extra_sources.values())
        ):
            check_end_of_text(tokenizer, self.end_of_text, self.tokenizer)
        shared = self._compare(train, val, extra_sources, cache)
        builder = DatasetBuilder(tokenizer, self.seq_len, self.layout == "documents", cache, self.mask_documents)
        limit = self._most_val_tokens
        fingerprints = [whole.fingerprint]
        if val is None:
            tokens = val_tokens = builder.load_tokens(whole, None)
            train_set, held = builder.split_rows(tokens, self.val_fraction, self.split_seed, whole.name)
            amount = builder.describe_tokens(tokens, self.tokenizer)
        else:
            if val.fingerprint != whole.fingerprint:
                fingerprints.append(val.fingerprint)
            val_tokens = builder.load_tokens(val, limit)
            held = builder.build_all(val_tokens, "The validation set", self._count_val_tokens(val_tokens.count, val))
            train_set, amount = builder.build_train(train, self.train_tokens, self.tokenizer)
        extra = {}
        for name, source in extra_sources.items():
            fingerprints.append(source.fingerprint)
            tokens = builder.load_tokens(source, self.val_sets[name].tokens or limit)
            data = builder.build_all(tokens, f"The validation set {name}")
            extra[name] = ValSet(data, builder.measure_bytes_per_token(data))
        return Corpus(
            train=train_set,
            val=held,
            fingerprint=combine_fingerprints(fingerprints),
            classes=tokenizer.vocab_size,
            shape=(self.seq_len,),
            bytes_per_token=builder.measure_bytes_per_token(held),
            description=f"text: {amount}, {builder.describe_sizes(train_set, held)}"
            + "".join(f", {len(part.data):,} of {name}" for name, part in extra.items())
            + shared,
            val_sets=extra,
            padded=builder.documents,
        )

    def _open_whole(self, cache: Path) -> Source:
        """Return the source of the training text. If no other is named, the validation text is a part of it."""
        return open_source(self.locate(self.train_split), self.column, cache)

    def _open_sides(self, whole: Source, cache: Path) -> tuple[Source, Source | None]:
        """Return the sources of the training and validation text; None if a part of the rows is held out."""
        if origin := self.locate_validation():
            val = open_source(origin, self.column, cache)
            if self.val_files:
                self._check_apart(whole, val, "val_files")
            return whole, val
        part = (self.val_fraction, self.split_seed)
        if isinstance(whole, FileSource) and self.layout == "packed":
            if not whole.has_documents(math.ceil(MANY / self.val_fraction)):
                window = (self.seq_len + 1) * (1 if self.tokenizer == "bytes" else LETTERS_PER_TOKEN)
                return BlockSplit(whole, False, *part, window), BlockSplit(whole, True, *part, window)
        elif not (self.dataset or self.train_tokens or self.val_tokens or parse_bpe_size(self.tokenizer)):
            return whole, None
        return HashSplit(whole, False, *part), HashSplit(whole, True, *part)

    def _compare(self, train: Source, val: Source | None, extra: Mapping[str, Source], cache: Path) -> str:
        """Return the share of each validation set that is training text, as a part of the description. Raises DataError
        if it is too large."""
        letters = 1 if self.tokenizer == "bytes" else LETTERS_PER_TOKEN

        def count_bytes(tokens: int | None) -> int | None:
            return None if tokens is None else tokens * letters

        note, limit = "", self._most_val_tokens
        given = "data.val_files" if self.val_files else "data.val_split" if self.val_split else "the held-out text"
        sets: dict[str, tuple[Source, int | None]] = {}
        if val is not None and not isinstance(val, HashSplit):
            sets[given] = (val, limit)
        for name, source in extra.items():
            sets[f"data.val_sets.{name}"] = (source, self.val_sets[name].tokens or limit)
        for what, (source, tokens) in sets.items():
            overlap = compare(train, source, count_bytes(self.train_tokens), count_bytes(tokens), cache)
            note += check_overlap(overlap, self.max_overlap, what, held_out=isinstance(source, Side))
        return note

    def _count_val_tokens(self, count: int, val: Source) -> int | None:
        """Return how many of the `count` tokens of `val` are used for validation; None: all. Raises DataError if a
        held-out part has fewer than requested."""
        if self.layout == "documents":
            return None
        if isinstance(val, Side) and count < (self.val_tokens or 0):
            raise DataError(
                f"data.val_tokens is {self.val_tokens:,}, and {count:,} tokens are held out "
                f"(val_fraction={self.val_fraction}): set a larger data.val_fraction, a smaller data.val_tokens (null: "
                "all of them), or data.val_files."
            )
        return self.val_tokens

    def load_tokenizer(self, cache: Path, train: Source | None = None) -> Tokenizer:
        """Return the tokenizer; for `bpe-N` it is trained on the training text. Raises DataError if it cannot be
        found."""
        if train is None and parse_bpe_size(self.tokenizer):
            train, _ = self._open_sides(self._open_whole(cache), cache)
        return load_or_train(self.tokenizer, self.end_of_text, train, cache)

    def _check_apart(self, train: Source, val: Source, where: str) -> None:
        """Raise DataError if `val`, from the field `where`, is also training data."""
        if isinstance(train, FileSource) and isinstance(val, FileSource):
            both = {os.path.realpath(path) for path in train.paths} & {os.path.realpath(path) for path in val.paths}
            if both:
                raise DataError(f"Both in files and in {where}: {', '.join(sorted(both))}")
        elif train.fingerprint == val.fingerprint:
            raise DataError(f"{where} is the training split: {train.name}. Choose another split.")


PAPER_TOKENS = 1_100_000_000
"""Training tokens of the papers' smallest model, 71M. Larger models need more: data.train_tokens=8_900_000_000."""

PRESETS: dict[str, dict[str, Any]] = {
    # Mix-LN and LNS: C4, English, T5's tokenizer, a document in each row of 256
    "c4": {
        "dataset": "allenai/c4",
        "subset": "en",
        "val_split": "validation",
        "tokenizer": "t5-base",
        "layout": "documents",
        "seq_len": 256,
        "train_tokens": PAPER_TOKENS,
    },
    # two-stage pre-training: FineWeb-Edu, which has no validation split, GPT-2's tokenizer, windows of 1024
    "fineweb-edu": {
        "dataset": "HuggingFaceFW/fineweb-edu",
        "subset": "sample-100BT",
        "tokenizer": "gpt2",
        "seq_len": 1024,
        "train_tokens": PAPER_TOKENS,
    },
    # nanoGPT, llm.c, modded-nanogpt, nanochat and autoresearch; none of the four has a validation split
    "fineweb": {
        "dataset": "HuggingFaceFW/fineweb",
        "subset": "sample-10BT",
        "tokenizer": "gpt2",
        "seq_len": 1024,
        "train_tokens": PAPER_TOKENS,
    },
    "openwebtext": {
        "dataset": "Skylion007/openwebtext",
        "tokenizer": "gpt2",
        "seq_len": 1024,
        "train_tokens": PAPER_TOKENS,
    },
    "dclm": {
        "dataset": "mlfoundations/dclm-baseline-1.0-parquet",
        "tokenizer": "gpt2",
        "seq_len": 1024,
        "train_tokens": PAPER_TOKENS,
    },
    # the text of nvidia/ClimbMix, which itself has GPT-2's tokens instead of text
    "climbmix": {
        "dataset": "karpathy/climbmix-400b-shuffle",
        "tokenizer": "gpt2",
        "seq_len": 1024,
        "train_tokens": PAPER_TOKENS,
    },
    # a row is a line of an article; the whole of it has 0.1 billion tokens
    "wikitext": {
        "dataset": "Salesforce/wikitext",
        "subset": "wikitext-103-raw-v1",
        "val_split": "validation",
        "tokenizer": "gpt2",
        "seq_len": 256,
    },
    # a sample of six billion tokens of SlimPajama-627B, which is dataset=cerebras/SlimPajama-627B
    "slimpajama": {
        "dataset": "DKYoon/SlimPajama-6B",
        "val_split": "validation",
        "tokenizer": "gpt2",
        "seq_len": 256,
        "train_tokens": PAPER_TOKENS,
    },
}
"""The corpora of the papers and of others by name, `data=c4`. Further settings override these."""

for _name, _fields in PRESETS.items():
    data_kinds.preset(_name, "text", **_fields, val_tokens=VAL_TOKENS)
