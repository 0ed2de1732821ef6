"""Sources of text: files or a dataset, as documents in a fixed order that can be resumed at any position."""

from __future__ import annotations

import hashlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from ablate.config.errors import DataError
from ablate.config.formatting import join_first
from ablate.data import hub
from ablate.data.cache import fingerprint_files, remember
from ablate.data.files import explain, find_files, read_stamps
from ablate.data.origins import Origin
from ablate.data.overlap import RECIPE, Overlap, measure_texts
from ablate.data.readers import get_text
from ablate.data.splits import Interval, split_text
from ablate.data.text.documents import ACCEPTED, WHOLE, Piece, find_format, read_file, yield_piece
from ablate.tracking.remote_files import fetch_all

logger = logging.getLogger(__name__)


class Reader(Iterator[Piece]):
    """The documents of a source from a position on, and the current position, as plain JSON values."""

    def __init__(self, pieces: Iterator[Piece], position: Callable[[], Any]) -> None:
        self._pieces, self.position = pieces, position

    def __next__(self) -> Piece:
        return next(self._pieces)


class Source(ABC):
    """Documents in a fixed order. It can be pickled, and opens no file before it is read."""

    name: str
    """The source's name in messages."""
    fingerprint: str
    """SHA-256 of the raw text; for a dataset on the hub, of its name, commit, subset and split."""
    identity: str
    """Equal for two sources only if they have the same documents."""

    @abstractmethod
    def open(self, position: Any = None) -> Reader:
        """Open the documents from the start, or from the `position` of an earlier reader. Reading raises DataError."""

    def has_documents(self, number: int) -> bool:
        """Return whether there are at least so many documents, reading no more than necessary. Raises DataError."""
        return sum(1 for _ in islice((piece for piece in self.open() if piece.last), number)) >= number


@dataclass(frozen=True)
class FileSource(Source):
    """Local files, one after the other; see `ablate.data.text.documents` for the formats."""

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

    def open(self, position: Any = None) -> Reader:
        at = list(position or (0, 0))  # the number of the file, and of its pieces that have been read

        def pieces() -> Iterator[Piece]:
            before = read_stamps(self.paths)
            first, skipped = at
            for number, path in enumerate(self.paths[first:], first):
                at[:] = number, skipped
                for piece in islice(read_file(path, self.column), skipped, None):
                    at[1] += 1
                    yield piece
                skipped = 0
            if read_stamps(self.paths) != before:
                raise DataError(f"A file changed while it was read: one of {self.name}")

        return Reader(pieces(), lambda: list(at))


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

    def open(self, position: Any = None) -> Reader:
        rows: Any = None
        number = 0

        def start() -> None:
            nonlocal rows, number
            rows = self._open_rows()
            if position:
                number = position["row"]
                rows.load_state_dict(position["state"])

        def pieces() -> Iterator[Piece]:
            nonlocal number
            start()
            for row in self._iterate(rows):
                number += 1
                where = f"{self.name}, row {number}"
                yield from yield_piece(where, get_text(where, row, self.column))

        return Reader(pieces(), lambda: {"row": number, "state": rows.state_dict()} if rows is not None else position)

    def read_rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (where it is, row) of each row with all its columns. Raises DataError."""
        for number, row in enumerate(self._iterate(self._open_rows()), 1):
            yield f"{self.name}, row {number}", row

    def _open_rows(self) -> Any:
        if self.commit is None:
            return hub.open_folder(Path(self.dataset), self.subset, self.split)
        return hub.open_hub(self.dataset, self.commit, self.subset, self.split)

    def _iterate(self, rows: Any) -> Iterator[dict[str, Any]]:
        try:
            yield from rows
        except Exception as error:  # of the network, the format and the library
            if self.commit is not None:
                raise hub.explain_hub_error(self.dataset, error) from error
            raise DataError(f"{self.name} cannot be read: {explain(error)}") from error


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

    def open(self, position: Any = None) -> Reader:
        inner, mine = position or (None, None)  # `mine`: whether the rest of a document that was begun is on this side
        reader = self.whole.open(inner)

        def pieces() -> Iterator[Piece]:
            nonlocal mine
            for piece in reader:
                this = mine
                if this is None:
                    digest = hashlib.sha256(f"{self.seed} {piece.text}".encode()).digest()
                    this = (int.from_bytes(digest[:8], "big") < self.fraction * 2**64) == self.held_out
                mine = None if piece.last else this
                if this:
                    yield piece

        return Reader(pieces(), lambda: [reader.position(), mine])


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

    def open(self, position: Any = None) -> Reader:
        # where the piece lies that is being read, the characters in front of it, and how many parts of it were given
        inner, start, count = position or (None, 0, 0)
        reader = self.whole.open(inner)

        def pieces() -> Iterator[Piece]:
            nonlocal inner, start, count
            parts = self._find_parts()
            for piece in reader:
                end = start + len(piece.text)
                mine = [(max(first, start), min(last, end), last) for first, last in parts]
                mine = [part for part in mine if part[0] < part[1]]
                for first, cut, last in mine[count:]:
                    text = piece.text[first - start : cut - start]
                    count += 1
                    yield Piece(text, len(text.encode()), last <= end or piece.last)
                inner, start, count = reader.position(), end, 0

        return Reader(pieces(), lambda: [inner, start, count])

    def _find_parts(self) -> list[Interval]:
        """Return the parts of this side; the whole text is read once for this."""
        ends, length = [], 0
        for piece in self.whole.open():
            length += len(piece.text)
            if piece.last:
                ends.append(length)
        return split_text(ends, self.fraction, self.seed, self.window)[self.held_out] if ends else []


MOST_COMPARED, MOST_DOWNLOADED = 1 << 30, 1 << 26
"""UTF-8 bytes of a text that are read to compare it with another: of local files, and of a dataset on the hub."""


def compare(train: Source, val: Source, train_bytes: int | None, val_bytes: int | None, cache: Path) -> Overlap:
    """Return how much of `val` is in `train` (`measure_texts`), kept in `cache`. Of each the given number of bytes is
    used, None: all, and no more than `MOST_COMPARED`: of many files a part of each. Raises DataError for text that
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
        for piece in part.open():
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
