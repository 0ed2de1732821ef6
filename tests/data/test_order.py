"""Every item once per epoch over any number of ranks, and exact continuation."""

from collections import Counter
from itertools import islice

import pytest
import torch
from torch.utils.data import TensorDataset

from ablate.data.order import PermutedBatches, SequentialBatches, build_loader, draw_permutation


def take(count, *args, **kwargs):
    return list(islice(PermutedBatches(*args, **kwargs), count))


def test_permutation_is_fixed_for_good():
    assert draw_permutation(10, 0).tolist() == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
    assert sorted(draw_permutation(1000, 3, 1).tolist()) == list(range(1000))
    assert (
        draw_permutation(50, 0, 1).tolist()
        != draw_permutation(50, 0, 2).tolist()
        != draw_permutation(50, 1, 2).tolist()
    )


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("items", [3, 8, 10, 37])
def test_each_item_once_per_epoch(items, ranks):
    batches = [take(items, items, 8, 5, rank=rank, world_size=ranks) for rank in range(ranks)]
    stream = [item for parts in zip(*batches, strict=True) for part in parts for item in part]
    assert len(stream) == 8 * items
    for epoch in range(8):
        assert sorted(stream[epoch * items : (epoch + 1) * items]) == list(range(items))


def test_ranks_share_the_batches_of_one_process():
    whole = take(20, 37, 8, 5)
    parts = [take(20, 37, 8, 5, rank=rank, world_size=4) for rank in range(4)]
    assert [[item for part in batch for item in part] for batch in zip(*parts, strict=True)] == whole


def test_epochs_differ_and_seeds_differ():
    first, second = take(2, 16, 16, 0)
    assert first != second
    assert take(1, 16, 16, 1) != [first]
    assert take(2, 16, 16, 0) == [first, second]


@pytest.mark.parametrize("start", [0, 1, 4, 7, 100])
@pytest.mark.parametrize("ranks", [1, 2])
def test_start_batch_equals_skipping(start, ranks):
    for rank in range(ranks):
        skipped = take(start + 9, 21, 4, 2, rank=rank, world_size=ranks)[start:]
        assert take(9, 21, 4, 2, start_batch=start, rank=rank, world_size=ranks) == skipped


def test_start_batch_does_not_go_through_the_batches_before(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "ablate.data.order.draw_permutation", lambda *args: calls.append(args) or draw_permutation(*args)
    )
    take(1, 10, 10, 0, start_batch=10**9)
    assert calls == [(10, 0, 1, 10**9)]


def test_iterating_again_starts_again_and_there_is_no_length():
    batches = PermutedBatches(10, 4, 0, start_batch=3)
    assert list(islice(batches, 5)) == list(islice(batches, 5))
    with pytest.raises(TypeError):
        len(batches)


@pytest.mark.parametrize("sampler", [SequentialBatches, lambda *a, **k: PermutedBatches(*a, 0, **k)])
def test_ranks_have_to_fit_the_batch(sampler):
    with pytest.raises(ValueError, match="batch of 6 cannot be shared equally by 4"):
        sampler(10, 6, world_size=4)
    with pytest.raises(ValueError, match="rank 2"):
        sampler(10, 6, rank=2, world_size=2)


@pytest.mark.parametrize(("items", "seed", "start"), [(0, 0, 0), (3, -1, 0), (3, 0, -1)])
def test_impossible_orders(items, seed, start):
    with pytest.raises(ValueError, match="not negative"):
        PermutedBatches(items, 2, seed, start_batch=start)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("size", [4, 8, 12])
def test_sequential_gives_each_item_once_and_ranks_equally_many_batches(ranks, size):
    for items in range(1, 60):
        samplers = [SequentialBatches(items, size, rank=rank, world_size=ranks) for rank in range(ranks)]
        batches = [list(sampler) for sampler in samplers]
        assert Counter(item for part in batches for batch in part for item in batch) == Counter(range(items))
        assert {len(part) for part in batches} == {len(samplers[0])}
        for part in batches:
            assert all(len(batch) <= size // ranks for batch in part)
            assert all(part[:-1]) or sum(map(len, part)) < len(part)
            assert all(part) or sum(map(len, part)) < len(part)


def test_sequential_by_hand():
    assert list(SequentialBatches(7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    # The second rank has no item more than two full batches, the third batch still gets one.
    assert list(SequentialBatches(9, 4, rank=0, world_size=2)) == [[0, 1], [2], [3]]
    assert list(SequentialBatches(9, 4, rank=1, world_size=2)) == [[4, 5], [6, 7], [8]]


class Squares(TensorDataset):
    def __init__(self):
        super().__init__(torch.arange(10), torch.arange(10) ** 2)

    def __getitems__(self, indices):
        return tuple(tensor[indices] for tensor in self.tensors)


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_gives_what_getitems_collated(workers):
    before = torch.random.get_rng_state()
    got = list(build_loader(Squares(), SequentialBatches(10, 4), workers))
    assert [inputs.tolist() for inputs, _ in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert torch.equal(torch.cat([targets for _, targets in got]), torch.arange(10) ** 2)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_without_end(workers):
    endless = build_loader(Squares(), PermutedBatches(10, 4, 0), workers)
    for _ in range(2):
        got = [inputs.tolist() for inputs, _ in islice(endless, 5)]
        assert got == take(5, 10, 4, 0)


def test_indices_may_carry_their_epoch():
    plain = [item for batch in take(9, 7, 4, 2, start_batch=3) for item in batch]
    numbered = [item for batch in take(9, 7, 4, 2, start_batch=3, with_epoch=True) for item in batch]
    assert [item % 7 for item in numbered] == plain
    assert [item // 7 for item in numbered] == [position // 7 for position in range(12, 12 + 36)]
