"""Text that is tokenised during training, for text that does not fit on the disk."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError
from ablate.config.lazy import postpone_imports, torch
from ablate.data.base import MOST_STREAMED, Batch
from ablate.data.files import expand_path
from ablate.data.order import build_loader, share_batch
from ablate.data.text.layouts import pad_rows
from ablate.data.text.sources import Source
from ablate.data.text.token_writer import cut_row, encode_pieces, keep_first_pieces
from ablate.data.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader

with postpone_imports():
    from ablate.data.text import stream_batches

BATCH = 1 << 18
"""UTF-8 bytes that are encoded at a time."""

EVERY = 4096
"""Number of rows between two stored positions."""


@dataclass(frozen=True)
class _Place:
    """A position in an epoch, from which the following rows can be computed again."""

    row: int = 0
    """Rows before it."""
    tokens: int = 0
    """Tokens before it."""
    rest: list[int] = field(default_factory=list)
    """Tokens before it that are not in a row yet."""
    inside: bool = False
    """Whether it is within a document."""
    position: Any = None
    """The position of the source; None at its start."""
    last: bool = False
    """Whether it is the end of the epoch."""


class Stream:
    """Rows of tokens in the order of the source, repeated endlessly: windows of `seq_len + 1` tokens, or one document
    each.

    There is no shuffling: a shuffle buffer cannot be resumed exactly. All arms and all seeds use the same rows in the
    same order. Every rank tokenises the whole stream and takes its slice of each batch, in at most one worker process,
    since each row depends on the rows before it. A resumed run starts from a stored position in the cache shortly
    before its own; on a machine without one it reads the stream from the start, with the same result.

    Args:
        source: the documents.
        tokenizer: encodes the documents.
        seq_len: tokens of an input.
        documents: whether a row is a document, cut or padded; otherwise documents are concatenated.
        limit: tokens after which the stream starts again, at the end of a document; None: at the end of the source.
        cache: the folder in which positions are stored.
    """

    def __init__(
        self, source: Source, tokenizer: Tokenizer, seq_len: int, documents: bool, limit: int | None, cache: Path
    ) -> None:
        self.source, self.tokenizer, self.seq_len = source, tokenizer, seq_len
        self.documents, self.limit = documents, limit
        facts = [source.identity, tokenizer.identity, seq_len, documents, limit, version("datasets")]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        self._notes = expand_path(cache) / "streams" / f"{key}.jsonl"

    def batches(
        self,
        batch_size: int,
        seed: int,
        *,
        start_batch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> DataLoader[Any]:
        """See `TrainSet`; the seed has no effect."""
        size = share_batch(batch_size, rank, world_size)
        rows = partial(self.read_rows, start_batch * batch_size, remember=rank == 0)
        batches = stream_batches.StreamBatches(rows, self.collate, batch_size, rank * size, size)
        return build_loader(batches, None, min(workers, 1))

    def count_workers(self, cores: int) -> int:
        """See `TrainSet`: one, since each row depends on the rows before it."""
        return min(cores, 1)

    def read_rows(self, first: int = 0, remember: bool = False) -> Iterator[NDArray[Any]]:
        """Yield the rows from number `first` on, without end; [seq_len + 1] each, or fewer tokens if a row is a
        document. `remember`: whether to store positions in the cache. Raises DataError if the source has no row.
        """
        places = self._read_places()
        if places and places[-1].last:
            first %= places[-1].row
        place = max((place for place in places if place.row <= first), key=lambda place: place.row, default=_Place())
        while True:
            row = place.row
            for tokens in self._read_epoch(place, places if remember else None):
                if row >= first:
                    yield tokens
                row += 1
            if not row:
                raise DataError(f"Too little data: {self.source.name} has no row of seq_len={self.seq_len}.")
            first, place = max(0, first - row), _Place()

    def read_targets(self, most: int) -> Iterator[Tensor]:
        """See `TrainSet`: the targets of the first rows, at most about `MOST_STREAMED`."""
        rows, left = [], min(most, MOST_STREAMED)
        for row in self._read_epoch(_Place(), None):
            rows.append(row[1:])
            left -= len(row)
            if left <= 0:
                break
        if rows:
            yield torch.from_numpy(np.concatenate(rows).astype(np.int64))

    def collate(self, rows: list[NDArray[Any]]) -> Batch:
        """Return inputs and targets, int64 [rows, seq_len] each."""
        lengths = torch.tensor([len(row) for row in rows])
        inside = torch.arange(self.seq_len + 1) < lengths[:, None]
        tokens = torch.zeros(inside.shape, dtype=torch.int64)
        if rows:
            tokens[inside] = torch.from_numpy(np.concatenate(rows).astype(np.int64))
        return pad_rows(tokens, inside)

    def _read_epoch(self, place: _Place, places: list[_Place] | None) -> Iterator[NDArray[Any]]:
        """Yield the rows after `place`; the remainder after the last window is dropped. New positions are added to
        `places`."""
        reader = self.source.open(place.position)
        pieces = keep_first_pieces(reader, place.inside) if self.documents else reader
        size, end = self.seq_len + 1, self.tokenizer.end_of_text
        rest = np.array(place.rest, np.uint32)
        row, count, remembered = place.row, place.tokens, place.row
        for batch in encode_pieces(pieces, self.tokenizer, BATCH):
            for piece, ids in batch:
                if self.documents:
                    kept = cut_row(piece, ids, end, size)
                    rows = [] if kept is None else [kept[0]]
                else:
                    tail = [end] if piece.last and end is not None else []
                    joined = np.concatenate([rest, ids, np.array(tail, np.uint32)])
                    whole = len(joined) // size * size
                    rows, rest = list(joined[:whole].reshape(-1, size)), joined[whole:]
                    count += len(ids) + len(tail)
                for tokens in rows:
                    yield tokens
                    row, count = row + 1, count + (len(tokens) if self.documents else 0)
                if self.limit is not None and count >= self.limit:
                    break
            if self.limit is not None and count >= self.limit:
                break
            if places is not None and row - remembered >= EVERY:
                remembered = row
                place = _Place(row, count, rest.tolist(), not batch[-1][0].last, reader.position())
                self._remember(place, places)
        if places is not None and row:
            self._remember(_Place(row, last=True), places)

    def _read_places(self) -> list[_Place]:
        """Return the positions that earlier runs stored, ascending; damaged lines are left out."""
        places = []
        with contextlib.suppress(OSError), self._notes.open(encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError):
                    places.append(_Place(**json.loads(line)))
        return sorted(places, key=lambda place: (place.last, place.row))

    def _remember(self, place: _Place, places: list[_Place]) -> None:
        if places and (places[-1].last or (places[-1].row >= place.row and not place.last)):
            return
        places.append(place)
        with contextlib.suppress(OSError):  # it saves time alone: a full disk does not end a run for it
            self._notes.parent.mkdir(parents=True, exist_ok=True)
            with self._notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(place)) + "\n")
