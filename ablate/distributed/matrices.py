"""Matrices of which the ranks have shards or copies: taken in turn, each is gathered on one rank, changed there, and
sent back. Also the order of the rows of fused matrices that ranks share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, distributed

from ablate.distributed import ranks


def regroup(weight: Tensor, sizes: Sequence[int], parts: int) -> Tensor:
    """Return the rows of fused matrices of so many rows in an order in which those of each of `parts` ranks stand
    together."""
    split = [matrix.chunk(parts) for matrix in weight.split(list(sizes))]
    return torch.cat([matrix[part] for part in range(parts) for matrix in split])


def ungroup(weight: Tensor, sizes: Sequence[int], parts: int) -> Tensor:
    """Return the rows in their original order, the inverse of `regroup`."""
    split = weight.split([size // parts for _ in range(parts) for size in sizes])
    return torch.cat([split[part * len(sizes) + matrix] for matrix in range(len(sizes)) for part in range(parts)])


@dataclass(frozen=True)
class Fused:
    """The matrices that are fused in one parameter."""

    rows: Sequence[int]
    """Of each matrix."""
    parts: int = 1
    """Ranks that share each of them, so that the rows are in the order of `regroup`."""

    def cut(self, whole: Tensor) -> list[Tensor]:
        """Return each matrix; views of `whole` unless ranks share them."""
        ordered = whole if self.parts == 1 else ungroup(whole, self.rows, self.parts)
        return list(ordered.split(list(self.rows)))

    def join(self, matrices: Sequence[Tensor], whole: Tensor) -> None:
        """Write changed matrices into `whole`, of which they are views unless ranks share them."""
        if self.parts > 1:
            whole.copy_(regroup(torch.cat(list(matrices)), self.rows, self.parts))


def find_own(value: Tensor) -> Tensor:
    """Return what this rank has of a tensor: its shard, or all of it."""
    own: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return own


@dataclass(frozen=True)
class Piece:
    """What a rank has of a matrix."""

    offset: tuple[int, ...]
    """Row and column of its first number."""
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: Tensor) -> Piece:
        """Return this rank's piece of a tensor."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        if not isinstance(value, DTensor):
            return cls((0,) * value.ndim, tuple(value.shape))
        shape, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        return cls(tuple(offset), tuple(shape))

    def cut(self, whole: Tensor) -> Tensor:
        """Return the view of the piece in a whole matrix; all of a tensor of another shape, such as a number."""
        if whole.ndim != len(self.shape):
            return whole
        return whole[tuple(slice(start, start + size) for start, size in zip(self.offset, self.shape, strict=True))]


class Exchange(Protocol):
    """Something that ranks send each other, in the background until `finish`."""

    def finish(self) -> None:
        """Wait until all that this rank receives is where it belongs."""


class _Pieces:
    """What each rank sends to some others."""

    def __init__(self, sent: Mapping[int, Tensor], received: Mapping[int, Tensor], device: torch.device) -> None:
        """Start to send `sent[r]` to rank r, and to receive `received[r]` from it. None is empty."""
        out = {rank: value.to(device).contiguous() for rank, value in sent.items()}
        into = {rank: torch.empty_like(value, device=device) for rank, value in received.items()}
        if (own := into.get(ranks.rank())) is not None:
            own.copy_(out[ranks.rank()])
        way = ((distributed.isend, out), (distributed.irecv, into))
        pairs = [(send, value, rank) for send, values in way for rank, value in values.items() if rank != ranks.rank()]
        self._works = distributed.batch_isend_irecv([distributed.P2POp(*one) for one in pairs]) if pairs else []
        self._received = [(received[rank], value) for rank, value in into.items()]
        self._sent = out  # is not freed before

    def finish(self) -> None:
        for work in self._works:
            work.wait()
        for target, value in self._received:
            target.copy_(value)


class _Broadcasts:
    """Rank r sends the r-th of some tensors to all, which receive it in their own."""

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        self._works: list[Any] = [distributed.broadcast(own, rank, async_op=True) for rank, own in enumerate(tensors)]

    def finish(self) -> None:
        for work in self._works:
            work.wait()


class Turns:
    """The turns in which the ranks take some matrices, of which each has a shard: in a turn each rank has one whole
    matrix, or none. Costly matrices come first, so that those of one turn are alike."""

    def __init__(self, pieces: Sequence[Sequence[Piece]], shapes: Sequence[tuple[int, ...]]) -> None:
        """Take turns with matrices of such `shapes`, of which rank r has `pieces[r]`."""
        self._pieces, self._shapes, size = pieces, shapes, len(pieces)
        order = sorted(range(len(shapes)), key=lambda index: (-_cost(shapes[index]), index))
        self.turns = [order[start : start + size] for start in range(0, len(order), size)]
        """The matrices of each turn by number: that of rank 0, of rank 1 and so on."""
        self._sources = {
            matrix: self._list_sources(matrix, rank) for turn in self.turns for rank, matrix in enumerate(turn)
        }

    def gather(
        self, turn: Sequence[int], own: Sequence[Tensor], device: torch.device
    ) -> tuple[Tensor | None, Exchange]:
        """Start to gather what all ranks have of the matrices of a turn; return this rank's whole matrix, to be read
        when the exchange is finished, and the exchange.

        Args:
            turn: one of `turns`.
            own: what this rank has of each matrix of the turn.
            device: of the whole matrix.
        """
        me, whole, received = ranks.rank(), None, {}
        if me < len(turn):
            mine = turn[me]
            whole = torch.empty(self._shapes[mine], dtype=own[0].dtype, device=device)
            received = {rank: self._pieces[rank][mine].cut(whole) for rank in self._sources[mine]}
        sent = {rank: own[rank] for rank, matrix in enumerate(turn) if me in self._sources[matrix]}
        return whole, _Pieces(sent, received, device)

    def spread(
        self, turn: Sequence[int], whole: Tensor | None, own: Sequence[Tensor], device: torch.device
    ) -> Exchange:
        """Start to send this rank's whole matrix, or its number, to all ranks, and to write into `own` what they send:
        this rank's piece of each matrix of the turn."""
        parts = [] if whole is None else [pieces[turn[ranks.rank()]].cut(whole) for pieces in self._pieces]
        return _Pieces(_list_full(parts), _list_full(own), device)

    def _list_sources(self, matrix: int, owner: int) -> list[int]:
        """Return the ranks that send their piece of a matrix to its owner: of those that have the same one the nearest,
        which is on the owner's machine if one is."""
        nearest: dict[Piece, int] = {}
        here = ranks.local_size()
        order = sorted((rank // here != owner // here, abs(rank - owner), rank) for rank in range(len(self._pieces)))
        for _, _, rank in order:
            nearest.setdefault(self._pieces[rank][matrix], rank)
        return [rank for piece, rank in nearest.items() if math.prod(piece.shape)]


class _TurnsOfCopies(Turns):
    """The turns with matrices of which each rank has a copy, where nothing has to be gathered."""

    def gather(
        self, turn: Sequence[int], own: Sequence[Tensor], device: torch.device
    ) -> tuple[Tensor | None, Exchange]:
        return own[ranks.rank()] if ranks.rank() < len(turn) else None, _Broadcasts()

    def spread(
        self, turn: Sequence[int], whole: Tensor | None, own: Sequence[Tensor], device: torch.device
    ) -> Exchange:
        if whole is not None and whole.data_ptr() != own[ranks.rank()].data_ptr():  # a state after the first update
            own[ranks.rank()].copy_(whole)
        return _Broadcasts(own)


def take_turns(matrices: Sequence[Tensor]) -> Turns:
    """Return the turns in which these ranks take `matrices`, of which each has a shard or a copy. All ranks have to
    call it at once, with the same matrices in the same order."""
    shapes = [tuple(matrix.shape) for matrix in matrices]
    pieces = ranks.gather_objects([Piece.of(matrix) for matrix in matrices])
    copied = all(piece.shape == shape for own in pieces for piece, shape in zip(own, shapes, strict=True))
    return (_TurnsOfCopies if copied else Turns)(pieces, shapes)


def _list_full(by_rank: Sequence[Tensor]) -> dict[int, Tensor]:
    """Return rank -> tensor of those that have something in them: a rank's shard may be empty."""
    return {rank: value for rank, value in enumerate(by_rank) if value.numel()}


def _cost(shape: Iterable[int]) -> int:
    """Return what multiplying a matrix by its own transpose costs, up to a factor."""
    rows, columns = shape
    return rows * columns * min(rows, columns)
