"""Sources of text: files or a dataset, as documents in a fixed order.

A .txt or .md file is one document; JSON lines, parquet and arrow have one in each line or row. The builders of
`datasets` do not replace these readers: they do not read .zst, ignore a missing or wrong column of JSON without an
error, and return a text file as a whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from ablate.config.errors import DataError
from ablate.config.formatting import join_first
from ablate.data import hub
from ablate.data.base import Origin
from ablate.data.files import explain, find_files, fingerprint_files, read_stamps, remember
from ablate.data.overlap import RECIPE, Overlap, measure_texts
from ablate.data.readers import (
    COMPRESSED,
    count_bytes,
    explain_missing_column,
    get_text,
    open_table,
    read_json_lines,
    read_lines,
    read_table,
)
from ablate.data.splits import split_text
from ablate.tracking.remote_files import fetch_all

logger = logging.getLogger(__name__)


PIECE = 1 << 20
"""Bytes after which a long text file is cut at a line end, so that files of any size can be encoded."""


class Piece(NamedTuple):
    """A document, or a part of a long one."""

    text: str
    size: int
    """UTF-8 bytes."""
    last: bool = True
    """Whether the document ends here."""


def find_format(path: Path) -> str:
    """Return the key of `READERS` for a file: its suffix without the suffix of a compression; "" for an unknown one."""
    inner = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    suffix = inner.suffix.lower()
    return suffix if suffix in READERS and (inner is path or suffix in LINES) else ""


def read_file(path: Path, column: str) -> Iterator[Piece]:
    """Yield the documents of a file; empty ones are left out. `column` contains the text in JSON, parquet and arrow.
    Raises DataError, naming the file and the line, for content that cannot be read.
    """
    try:
        yield from READERS[find_format(path)](path, column)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain(error)}") from error


def _read_text(path: Path, column: str) -> Iterator[Piece]:
    parts: list[str] = []
    size = 0
    for _, line, length in read_lines(path):
        if size >= PIECE:
            yield Piece("".join(parts), size, last=False)
            parts, size = [], 0
        parts.append(line)
        size += length
    if size:
        yield Piece("".join(parts), size)


def _read_json_documents(path: Path, column: str) -> Iterator[Piece]:
    for where, row in read_json_lines(path, f"{{{json.dumps(column)}: ...}}"):
        yield from yield_piece(where, get_text(where, row, column))


def yield_piece(where: str, text: str) -> Iterator[Piece]:
    """Yield the document in a row, or nothing if it is empty. Raises DataError for text that is not Unicode."""
    if size := count_bytes(where, text):
        yield Piece(text, size)


def _read_table(path: Path, column: str) -> Iterator[Piece]:
    with open_table(path, column) as (schema, batches):
        if column not in schema.names:
            raise explain_missing_column(str(path), column, schema.names)
        kind = schema.field(column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise DataError(f"{path}: the column {column!r} must contain strings, but contains {kind}")
        for where, row in read_table(path, batches):
            yield from yield_piece(where, get_text(where, row, column))


READERS: dict[str, Callable[[Path, str], Iterator[Piece]]] = {
    ".txt": _read_text,
    ".md": _read_text,
    ".jsonl": _read_json_documents,
    ".ndjson": _read_json_documents,
    ".json-lines": _read_json_documents,
    ".parquet": _read_table,
    ".arrow": _read_table,
}
"""The reader of a file, by its suffix."""

WHOLE = (".txt", ".md")
"""The suffixes of files that are one document each."""
LINES = (".txt", ".md", ".jsonl", ".ndjson", ".json-lines")
ACCEPTED = f"{', '.join(READERS)}; all but the last two also compressed ({', '.join(COMPRESSED)})"
"""The suffixes that are accepted, for messages."""


class Source(ABC):
    """Documents in a fixed order. It can be pickled, and opens no file before it is read."""

    name: str
    """The source's name in messages."""
    fingerprint: str
    """SHA-256 of the raw text; for a dataset on the hub, of its name, commit, subset and split."""
    identity: str
    """Equal for two sources only if they have the same documents."""

    @abstractmethod
    def read(self) -> Iterator[Piece]:
        """Yield the documents. Raises DataError."""

    def has_documents(self, number: int) -> bool:
        """Return whether there are at least so many documents, reading no more than necessary. Raises DataError."""
        return sum(1 for _ in islice((piece for piece in self.read() if piece.last), number)) >= number


@dataclass(frozen=True)
class FileSource(Source):
    """Local files, one after the other."""

    paths: tuple[Path, ...]
    column: str
    fingerprint: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return join_first(self.paths, 3)

    def has_documents(self, number: int) -> bool:
        """See `Source`; a text file is known to be one document."""
        whole = sum(find_format(path) in WHOLE for path in self.paths)
        rest = (read_file(path, self.column) for path in self.paths if find_format(path) not in WHOLE)
        documents = (piece for pieces in rest for piece in pieces if piece.last)
        return whole + sum(1 for _ in islice(documents, max(0, number - whole))) >= number

    @property
    def identity(self) -> str:  # type: ignore[override]
        # The same bytes give other documents when they are read as another format or from another column.
        return " ".join([self.fingerprint, *map(find_format, self.paths), self.column])

    def read(self) -> Iterator[Piece]:
        before = read_stamps(self.paths)
        for path in self.paths:
            yield from read_file(path, self.column)
        if read_stamps(self.paths) != before:
            raise DataError(f"A file changed while it was read: one of {self.name}")


@dataclass(frozen=True)
class DatasetSource(Source):
    """A split of a dataset on the hub or, without a commit, of one in a folder; a row is a document."""

    dataset: str
    commit: str | None
    subset: str | None
    split: str
    column: str
    fingerprint: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return " ".join(["the dataset", self.dataset, *([self.subset] if self.subset else []), f"({self.split})"])

    @property
    def identity(self) -> str:  # type: ignore[override]
        return f"{self.fingerprint} {self.column}"

    def read(self) -> Iterator[Piece]:
        for where, row in self.read_rows():
            yield from yield_piece(where, get_text(where, row, self.column))

    def read_rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (where it is, row) of each row with all its columns. Raises DataError."""
        local = self.commit is None
        rows = (
            hub.open_folder(Path(self.dataset), self.subset, self.split)
            if self.commit is None
            else hub.open_hub(self.dataset, self.commit, self.subset, self.split)
        )
        try:
            for number, row in enumerate(rows, 1):
                yield f"{self.name}, row {number}", row
        except Exception as error:  # of the network, the format and the library
            if local:
                raise DataError(f"{self.name} cannot be read: {explain(error)}") from error
            raise hub.explain_hub_error(self.dataset, error) from error


@dataclass(frozen=True)
class Side(Source):
    """The training or the validation side of a source without a validation set."""

    what: ClassVar[str]
    """The name of one of its pieces in messages."""
    whole: Source
    held_out: bool
    """Whether this is the validation side."""
    fraction: float
    seed: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.whole.name}, {'the held-out part' if self.held_out else 'but for the held-out part'}"

    @property
    def fingerprint(self) -> str:  # type: ignore[override]
        return self.whole.fingerprint

    def has_documents(self, number: int) -> bool:
        """See `Source`; of both sides."""
        return self.whole.has_documents(number)


@dataclass(frozen=True)
class HashSplit(Side):
    """A side of many documents. The SHA-256 of a document's text determines its side, so that the validation set does
    not depend on the amount of training text, and training contains no validation document, not even a copy.
    """

    what: ClassVar[str] = "document"

    @property
    def identity(self) -> str:  # type: ignore[override]
        return f"{self.whole.identity} {self.held_out} {self.fraction!r} {self.seed}"

    def read(self) -> Iterator[Piece]:
        is_mine: bool | None = None  # whether the rest of a document that was begun is on this side
        for piece in self.whole.read():
            if is_mine is None:
                digest = hashlib.sha256(f"{self.seed} {piece.text}".encode()).digest()
                is_mine = (int.from_bytes(digest[:8], "big") < self.fraction * 2**64) == self.held_out
            if is_mine:
                yield piece
            is_mine = None if piece.last else is_mine


@dataclass(frozen=True)
class BlockSplit(Side):
    """A side of few documents: whole documents, or contiguous blocks of long ones; see `split_text`, in characters.
    Each part of a side is a document of its own."""

    what: ClassVar[str] = "text"
    window: int
    """Approximate number of characters of a window."""

    @property
    def identity(self) -> str:  # type: ignore[override]
        return f"{self.whole.identity} blocks {self.held_out} {self.fraction!r} {self.seed} {self.window}"

    def read(self) -> Iterator[Piece]:
        ends, length = [], 0
        for piece in self.whole.read():
            length += len(piece.text)
            if piece.last:
                ends.append(length)
        parts = split_text(ends, self.fraction, self.seed, self.window)[self.held_out] if ends else []
        start = 0
        for piece in self.whole.read():
            end = start + len(piece.text)
            for first, last in parts:
                if (begin := max(first, start)) < (cut := min(last, end)):
                    text = piece.text[begin - start : cut - start]
                    yield Piece(text, len(text.encode()), last <= end or piece.last)
            start = end


MOST_COMPARED, MOST_DOWNLOADED = 1 << 30, 1 << 26
"""UTF-8 bytes of a text that are read to compare it with another: of local files, and of a dataset on the hub."""


def compare(train: Source, val: Source, train_bytes: int | None, val_bytes: int | None, cache: Path) -> Overlap:
    """Return how much of `val` is in `train` (`measure_texts`), kept in `cache`. The given number of bytes of each is
    used (None: all), and no more than `MOST_COMPARED`: a part of each of many files. Raises DataError for text that
    cannot be read."""

    def measure() -> list[str]:
        overlap = measure_texts(_read_texts(train, train_bytes), _read_texts(val, val_bytes))
        return [repr(overlap.share), overlap.example]

    sides = [train.identity, val.identity, train_bytes, val_bytes]
    share, example = remember(f"overlap {RECIPE} {json.dumps(sides)}", [], cache / "overlaps", measure)
    return Overlap(float(share), example)


def _read_texts(source: Source, most: int | None) -> Iterator[str]:
    """Yield the texts of a source, up to `most` bytes. A warning says if a text is longer than may be compared. Of
    many files, short ones leave their part to longer ones."""
    remote = isinstance(source, DatasetSource) and source.commit is not None
    left = allowed = MOST_DOWNLOADED if remote else MOST_COMPARED
    parts: list[Source] = [source]
    if isinstance(source, FileSource) and most is None:
        parts = [replace(source, paths=(path,)) for path in sorted(source.paths, key=lambda path: path.stat().st_size)]
    if most is not None:
        left = min(left, most)
    cut = False
    for number, part in enumerate(parts):
        own = left // (len(parts) - number)
        for piece in part.read():
            if own <= 0:
                cut = True
                break
            yield piece.text
            own, left = own - piece.size, left - piece.size
    if cut and (most is None or most > allowed):
        text = f"only {allowed >> 20:,} MiB of {source.name} were compared with the validation text"
        logger.warning(text)


def open_files(paths: Sequence[Path], column: str, cache: Path) -> FileSource:
    """Return local files as a source. Raises DataError for one that cannot be read."""
    return FileSource(tuple(paths), column, fingerprint_files(paths, cache))


def open_dataset(
    name: str, subset: str | None, split: str, revision: str | None, column: str, cache: Path
) -> DatasetSource:
    """Return a split of a dataset on the hub, or in a folder, as a source.

    Raises DataError if there is no such dataset, or its commit on the hub cannot be determined.
    """
    folder = hub.find_folder(name)
    if folder is None:
        commit = hub.pin_commit(name, revision, cache)
        parts: list[Any] = [name, commit, subset, split]
        return DatasetSource(name, commit, subset, split, column, _hash_json(parts))
    files = hub.list_files(folder)
    if not files:
        raise DataError(f"The folder {folder} has no files.")
    parts = [fingerprint_files(files, cache), [str(file.relative_to(folder)) for file in files], subset, split]
    return DatasetSource(str(folder), None, subset, split, column, _hash_json(parts))


def _hash_json(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def open_source(origin: Origin, column: str, cache: Path) -> Source:
    """Return the files, or the split of a dataset, as a source. Raises DataError if they are missing."""
    if origin.dataset is not None:
        return open_dataset(origin.dataset, origin.subset, origin.split, origin.revision, column, cache)
    return open_files(find_files(fetch_all(origin.files, cache), find_format, ACCEPTED), column, cache)
