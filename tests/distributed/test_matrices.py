"""Who sends what of a matrix to whom."""

import pytest

from ablate.distributed import ranks
from ablate.distributed.matrices import Piece, Turns

ROWS, COLUMNS = 16, 3


def take_turns(monkeypatch, shards, machines=2):
    """Turns of sixteen ranks with sixteen matrices, of which `shards` neighbours share a copy."""
    monkeypatch.setattr(ranks, "local_size", lambda: 16 // machines)
    rows = ROWS // shards
    pieces = [[Piece((rank % shards * rows, 0), (rows, COLUMNS))] * 16 for rank in range(16)]
    return Turns(pieces, [(ROWS, COLUMNS)] * 16)


@pytest.mark.parametrize("shards", [2, 4, 8])
def test_a_matrix_is_gathered_on_its_machine_where_that_has_a_copy(monkeypatch, shards):
    turns = take_turns(monkeypatch, shards)
    (turn,) = turns.turns
    for owner, matrix in enumerate(turn):
        sources = turns._sources[matrix]
        assert {rank // 8 for rank in sources} == {owner // 8}
        assert sorted(rank % shards for rank in sources) == list(range(shards))


def test_a_copy_that_no_machine_has_comes_from_all(monkeypatch):
    turns = take_turns(monkeypatch, 16)
    assert all(sorted(sources) == list(range(16)) for sources in turns._sources.values())


def test_costly_matrices_come_first_and_those_of_a_turn_are_alike():
    shapes = [(2, 2), (9, 9), (4, 4), (9, 9), (2, 2)]
    turns = Turns([[Piece((0, 0), shape) for shape in shapes]] * 2, shapes)
    assert turns.turns == [[1, 3], [2, 0], [4]]
