"""A part of a validation set, evenly spread over it: the same items, and the bytes of its own tokens."""

import json

import numpy as np
import pytest
import torch

from ablate.data import Instructions, Text, Topics
from ablate.data.base import BatchDataset
from ablate.data.images.digits import Digits

WORDS = [f"{'word ' * (1 + n % 7)}{n}" for n in range(400)]


class Numbers(BatchDataset):
    """What a plugin may give: a dataset that knows nothing of parts."""

    def __len__(self):
        return 10

    def __getitems__(self, indices):
        return torch.tensor(indices), torch.tensor(indices) * 2


@pytest.fixture(params=["windows", "rows", "instructions", "packed", "topics", "digits"])
def corpus(request, tmp_path):
    if request.param == "topics":
        return Topics(seq_len=64).load(tmp_path)
    if request.param == "digits":
        return Digits().load(tmp_path)
    if request.param in ("windows", "rows"):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in WORDS))
        layout = "packed" if request.param == "windows" else "documents"
        return Text(files=str(tmp_path / "a.jsonl"), seq_len=8, layout=layout, val_fraction=0.4).load(tmp_path)
    rows = [{"instruction": f"say {n}", "output": text} for n, text in enumerate(WORDS)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    layout = "packed" if request.param == "packed" else "documents"
    data = Instructions(
        files=str(tmp_path / "rows.json"), template="plain", seq_len=60, layout=layout, val_fraction=0.4
    )
    return data.load(tmp_path)


def test_the_items_are_spread_over_the_whole_set(corpus):
    size = len(corpus.val)
    part = corpus.limit_validation(7)
    assert len(part.val) == 7
    assert part.train is corpus.train
    for place in range(7):
        for mine, whole in zip(part.val[place], corpus.val[int(place * size / 7)], strict=True):
            assert torch.equal(mine, whole)
    assert corpus.limit_validation(size).val is corpus.limit_validation(None).val is corpus.val
    assert part.count_validation_items() == [7]


def test_a_dataset_of_a_plugin_has_parts_too():
    part = Numbers().select(np.array([1, 4, 9]))
    inputs, targets = part.__getitems__([2, 0])
    assert (inputs.tolist(), targets.tolist(), len(part)) == ([9, 1], [18, 2], 3)


@pytest.mark.parametrize("layout", ["packed", "documents"])
def test_bits_per_byte_are_those_of_its_own_tokens(layout, tmp_path):
    """Early documents have short words and late ones long words, so that a part has other bytes for each token."""
    import tokenizers

    names = [chr(ord("a") + n) * (1 + n) for n in range(20)]
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "</s>": 1, **{w: 2 + n for n, w in enumerate(names)}}, "[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text('{"text": "a a a"}\n')
    (tmp_path / "b.jsonl").write_text(
        "".join(json.dumps({"text": " ".join([name] * 9)}) + "\n" for name in names for _ in range(5))
    )
    data = Text(
        files=str(tmp_path / "a.jsonl"), val_files=str(tmp_path / "b.jsonl"), seq_len=9, layout=layout,
        tokenizer=str(tmp_path / "tokenizer.json"), val_sets={"again": {"files": str(tmp_path / "b.jsonl")}},
    )  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join('{"text": "a a a a a a a a a"}\n' for _ in range(5)))
    corpus = data.load(tmp_path)
    assert len(corpus.val) == 100  # a document of nine words and its end is a row, and a window
    every = corpus.limit_validation(20)
    assert every.bytes_per_token == pytest.approx(corpus.bytes_per_token, rel=1e-3)
    few = corpus.limit_validation(2)  # of the words a and kkkkkkkkkkk
    mean = np.mean([len(" ".join([name] * 9)) + 1 for name in ("a", "k" * 11)]) / 10
    assert few.bytes_per_token == pytest.approx(mean, rel=0.02)
    assert few.bytes_per_token == few.val_sets["again"].bytes_per_token
    assert len(few.val_sets["again"].data) == 2
