"""Checks of data: batches must depend only on the seed and their number, and must fit the task."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.utils._pytree as pytree

from ablate.data import Corpus
from ablate.diagnostics.checks.base import CheckFailedError, Settings, add_check
from ablate.diagnostics.checks.models import check_resumption
from ablate.diagnostics.checks.subject import BATCH, Subject, build_first, load_anew
from ablate.models import list_families

PART = "data"
_SEED = 3
_MOST = 256  # validation samples that are looked for among the training samples


def _build(kind: str, settings: Settings) -> Subject:
    """Return a subject of the first family that takes the data."""
    hint = "no family takes it by default. Add settings, such as model=... or data.files=..."
    return build_first(({"model.kind": family, "data.kind": kind} for family in list_families()), settings, hint)


def _read(corpus: Corpus, count: int, **place: Any) -> list[list[torch.Tensor]]:
    """Return the tensors of `count` training batches."""
    batches = itertools.islice(corpus.train.batches(BATCH, _SEED, **place), count)
    return [pytree.tree_leaves(batch) for batch in batches]


def _is_same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@add_check(PART, "loads the same")
def check_loading(kind: str, settings: Settings) -> str:
    """Check that the fingerprint and the first batch are the same whenever it is loaded."""
    subject = _build(kind, settings)
    again = load_anew(subject.experiment.data)
    if again.identity != subject.corpus.identity:
        raise CheckFailedError("its fingerprint changes each time it is loaded")
    if not _is_same(_read(again, 1)[0], _read(subject.corpus, 1)[0]):
        raise CheckFailedError("its first batch changes each time it is loaded, with the same fingerprint")
    return f"fingerprint {again.fingerprint[:12]}"


@add_check(PART, "order")
def check_order(kind: str, settings: Settings) -> None:
    """Check that a batch is the same in a resumed run, on two ranks and read by a worker process."""
    corpus = _build(kind, settings).corpus
    whole = _read(corpus, 3)
    if not _is_same(whole[2], _read(corpus, 1, start_batch=2)[0]):
        raise CheckFailedError("the third batch changes if a run is resumed before it")
    ranks = [_read(corpus, 1, rank=rank, world_size=2)[0] for rank in range(2)]
    joined = whole[0]  # of batches that are padded to their longest sample, the ranks' may not fit together
    if all(a.shape[1:] == b.shape[1:] for a, b in zip(*ranks, strict=True)):
        joined = [torch.cat(parts) for parts in zip(*ranks, strict=True)]
    if not _is_same(whole[0], joined):
        raise CheckFailedError("the first batch differs on two ranks")
    if not _is_same(whole[0], _read(corpus, 1, workers=1)[0]):
        raise CheckFailedError("the first batch differs if a worker process reads it (trainer.num_workers)")


@add_check(PART, "validation")
def check_validation(kind: str, settings: Settings) -> str:
    """Check that validation samples are the same each time and are not trained on."""
    corpus = _build(kind, settings).corpus
    rows = list(range(min(len(corpus.val), _MOST)))
    first, second = ([_list_bytes(corpus.val.__getitems__([row])[0]) for row in rows] for _ in range(2))
    if first != second:
        raise CheckFailedError("validation samples change each time they are read")
    trained = {_list_bytes(corpus.train.__getitems__([row])[0]) for row in range(min(len(corpus.train), 16 * _MOST))}
    shared = sum(sample in trained for sample in first)
    if shared > len(rows) / 100:
        raise CheckFailedError(f"{shared} of {len(rows)} validation inputs are training inputs as well")
    return f"{shared} of {len(rows)} inputs are among the {len(trained):,} training inputs that were read"


def _list_bytes(inputs: Any) -> bytes:
    return b"".join(leaf.contiguous().numpy().tobytes() for leaf in pytree.tree_leaves(inputs))


@add_check(PART, "shapes")
def check_shapes(kind: str, settings: Settings) -> str:
    """Check that its samples have the shape and the classes that it names."""
    subject = _build(kind, settings)
    corpus, declared = subject.corpus, subject.experiment.data.input_shape
    inputs, _ = subject.read_batch(1)
    if isinstance(inputs, torch.Tensor) and tuple(inputs.shape[1:]) != corpus.shape:
        raise CheckFailedError(f"an input has the shape {tuple(inputs.shape[1:])}, and the corpus says {corpus.shape}")
    if declared and declared[-2:] != corpus.shape[-2:]:
        raise CheckFailedError(f"input_shape says {declared}, and the corpus {corpus.shape}")
    return f"inputs of {corpus.shape}, {corpus.classes:,} classes"


@add_check(PART, "trains")
def check_training(kind: str, settings: Settings) -> None:
    """Check that a model trains on it, and that resumed updates equal uninterrupted ones."""
    check_resumption(_build(kind, settings))
