"""A document in each row, and how often each token is read."""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from ablate.config.errors import DataError
from ablate.data import IGNORED, SequentialBatches, Text, build_loader

TEXTS = [f"{number:03} " + "word " * (number % 9) for number in range(90)]


@pytest.fixture
def config(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))

    def build(**fields):
        return Text(files=str(tmp_path / "a.jsonl"), **{"seq_len": 24, "layout": "documents", **fields})

    return build


def text_of(inputs, targets):
    """The bytes of a row, put together again from what is not padding."""
    count = int((targets != IGNORED).sum())
    assert torch.equal(inputs[1 : count + 1] if count < len(inputs) else inputs[1:], targets[: len(inputs[1:][:count])])
    assert not inputs[count + 1 :].any()
    return bytes([int(inputs[0]), *targets[:count].tolist()])


def test_rows_are_documents_cut_or_padded(config, tmp_path):
    corpus = config().load(tmp_path)
    assert corpus.padded
    rows = [text_of(*data[index]) for data in (corpus.train, corpus.val) for index in range(len(data))]
    assert sorted(rows) == sorted((text + "\0").encode()[:25] for text in TEXTS)
    inputs, targets = corpus.train.__getitems__([0, 3])
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (2, 24)
    assert corpus.description == (
        f"text: {sum(map(len, rows)):,} tokens (bytes) of 90 documents, "
        "86 training and 4 validation documents of up to 24 tokens"
    )


def test_bytes_per_token(config, tmp_path):
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "word": 1, "</s>": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    corpus = config(seq_len=6, tokenizer=str(tmp_path / "tokenizer.json"), val_fraction=0.5).load(tmp_path)
    total = count = 0.0
    for number in (int(corpus.val.numbers[index]) for index in range(len(corpus.val))):
        length = 2 + number % 9  # a number, words, the end
        size = len(TEXTS[number]) + 1 if length <= 7 else round(len(TEXTS[number]) * 7 / (length - 1))
        kept = min(length, 7)
        total, count = total + size * (kept - 1) / kept, count + kept - 1
    assert corpus.bytes_per_token == pytest.approx(total / count)


def test_too_few_documents(config, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one document"}\n')
    with pytest.raises(DataError, match=r"Too little data: .*a.jsonl is a single document"):
        config().load(tmp_path)
    with pytest.raises(DataError, match=r"no document of .*a.jsonl is .*\(val_fraction=0.05\). Set a validation set"):
        config(val_tokens=5).load(tmp_path)


@pytest.mark.parametrize("layout", ["packed", "documents"])
@pytest.mark.parametrize(
    ("ranks", "workers"),
    [(1, 0), (1, 4), (2, 2), (4, 0), *(pytest.param(*both, marks=pytest.mark.chaos) for both in ((2, 4), (4, 2)))],
)
def test_each_token_once_per_epoch(config, tmp_path, layout, ranks, workers):
    """Over all ranks and workers, counted one by one: `token` is a position of the stream."""
    corpus = config(layout=layout, val_fraction=0.2).load(tmp_path)
    stream = np.load(next((tmp_path / "tokens").glob("*.npy")))
    items, batch_size = len(corpus.train), 8
    expected = Counter()
    for index in range(items):
        expected.update(corpus.train[index][1].tolist())
    epochs = 2
    batches = -(-items * epochs // batch_size)
    parts = []
    for rank in range(ranks):
        data = corpus.train.batches(batch_size, 3, rank=rank, world_size=ranks, workers=workers)
        parts.append([targets for _, targets in islice(data, batches)])
    rows = [row for batch in zip(*parts, strict=True) for part in batch for row in part.tolist()]
    for epoch in range(epochs):
        epoch_rows = rows[epoch * items : (epoch + 1) * items]
        assert Counter(token for row in epoch_rows for token in row) == expected
    assert expected[IGNORED] == (0 if layout == "packed" else items * 24 - sum(map(expected.get, set(stream.tolist()))))
    val = [
        targets
        for rank in range(ranks)
        for _, targets in build_loader(
            corpus.val, SequentialBatches(len(corpus.val), batch_size, rank=rank, world_size=ranks), workers
        )
    ]
    assert sum(map(len, val)) == len(corpus.val)


@pytest.mark.parametrize("layout", ["packed", "documents"])
def test_the_middle_of_an_epoch_whatever_the_workers(config, tmp_path, layout):
    corpus = config(layout=layout).load(tmp_path)
    whole = [targets.tolist() for _, targets in islice(corpus.train.batches(4, 1), 40)]
    for start, workers in ((7, 0), (7, 2), (31, 1)):
        rest = islice(corpus.train.batches(4, 1, start_batch=start, workers=workers), 40 - start)
        assert [targets.tolist() for _, targets in rest] == whole[start:]
