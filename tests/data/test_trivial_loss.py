"""The trivial loss of every kind of data: against counts by hand, and against a recount of every target in Python."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from ablate.data import IGNORED, BatchDataset, Corpus, Text, base, data_kinds
from ablate.data.base import choose_blocks, compute_trivial_loss
from ablate.data.text.layouts import Windows

CLASSES = {"blue": 7, "green": 2, "red": 1}  # -> images of it
QUESTIONS = [{"instruction": f"Add {n} and {n}", "output": f"it is {2 * n}"} for n in range(20)]
PAIRS = [{"prompt": f"is it {n}?", "chosen": "yes", "rejected": "no"} for n in range(20)]


@pytest.fixture
def folder(tmp_path):
    """Text, instructions, pairs, and images in folders and in a table."""
    import datasets

    (tmp_path / "text.txt").write_text("to be or not to be\n" * 40)
    np.frombuffer(b"to be or not to be\n" * 40, np.uint8).astype("<u2").tofile(tmp_path / "tokens.bin")
    (tmp_path / "rows.json").write_text(json.dumps(QUESTIONS))
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    images, labels = [], []
    for label, (name, count) in enumerate(CLASSES.items()):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(count):
            file = tmp_path / "images" / name / f"{number}.png"
            Image.new("RGB", (4, 4), (number, 9 * label, 0)).save(file)
            images.append({"bytes": file.read_bytes(), "path": None})
            labels.append(label)
    columns = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))}
    table = datasets.Dataset.from_dict({"image": images, "label": labels}, features=datasets.Features(columns))
    table.to_parquet(tmp_path / "images.parquet")
    table.save_to_disk(tmp_path / "saved")
    return tmp_path


SETTINGS = {
    "topics": {},
    "text": {"files": "text.txt", "seq_len": 16},
    "packages": {"packages": ["pluggy"], "seq_len": 16, "val_fraction": 0.5},  # which comes with pytest
    "tokens": {"files": "tokens.bin", "seq_len": 16, "vocab_size": 200},
    "digits": {},
    "glyphs": {"draws": 1, "val_draws": 1, "image_size": 8},
    "image_folder": {"root": "images", "image_size": 4, "val_fraction": 0.3},
    "image_dataset": {"dataset": "saved", "image_size": 4, "val_fraction": 0.3},
    "image_files": {"files": "images.parquet", "image_size": 4, "val_fraction": 0.3},
    "instructions": {"files": "rows.json", "seq_len": 200},
    "preferences": {"files": "pairs.json", "seq_len": 200},
}
UNKNOWN = {"preferences"}
"""Kinds that have none on purpose."""
MASKED = {"mask_folder"}
"""Kinds whose targets are masks: the loss that counts pixels is tested with the task."""


def load(folder, kind, **fields):
    settings = {**SETTINGS[kind], **fields}
    for key in ("files", "root", "dataset", "val_files"):
        if key in settings:
            settings[key] = str(folder / settings[key])
    return data_kinds.parse({"kind": kind, **settings}).load(folder / "cache")


def recount(corpus):
    """The trivial loss as it is defined, over all targets one by one."""
    train, val = (
        Counter(
            target
            for index in range(len(data))
            for target in data.__getitems__([index])[1].flatten().tolist()
            if target != IGNORED
        )
        for data in (corpus.train, corpus.val)
    )
    n, distinct, classes = train.total(), len(train), corpus.classes
    loss = -sum(
        count * math.log((train[target] + distinct / classes) / (n + distinct)) for target, count in val.items()
    )
    return min(loss / val.total(), math.log(classes))


@pytest.mark.parametrize("kind", [kind for kind in data_kinds if kind not in MASKED])
def test_every_kind_of_data_has_one_or_has_none_on_purpose(folder, kind):
    assert kind in SETTINGS, f"the smallest settings of the new kind {kind} belong here"
    corpus = load(folder, kind)
    loss = corpus.measure_trivial_loss()
    if kind in UNKNOWN:
        assert loss is None
    else:
        assert loss == pytest.approx(recount(corpus), rel=1e-12)
        assert 0 < loss <= math.log(corpus.classes)


@pytest.mark.parametrize(
    ("train", "val", "expected"),
    [
        # all classes are there: Laplace's rule, 8/10 and 2/10 of 7 and 1
        ([7, 1], [3, 1], -(3 * math.log(0.8) + math.log(0.2)) / 4),
        ([1, 1, 0, 0], [1, 0, 1, 0], math.log(4)),  # (1.5/4, 0.5/4) would cost 1.53 nats, guessing evenly costs 1.39
        ([8, 0], [1, 0], -math.log(8.5 / 9)),
        ([8, 0], [4, 1], -(4 * math.log(8.5 / 9) + math.log(0.5 / 9)) / 5),
        ([0, 0], [1, 0], None),
        ([1, 0], [0, 0], None),
    ],
)
def test_against_counts_by_hand(train, val, expected):
    assert compute_trivial_loss(np.array(train), np.array(val)) == (expected and pytest.approx(expected, rel=1e-12))


def test_text_by_hand(tmp_path):
    """Windows of two tokens, of which the second alone is a target: b, b, b, a to train on."""
    (tmp_path / "train.txt").write_text("abababaa")
    (tmp_path / "val.txt").write_text("abaaab")
    data = Text(files=str(tmp_path / "train.txt"), val_files=str(tmp_path / "val.txt"), seq_len=1)
    a, b = ((count + 2 / 256) / 6 for count in (1, 3))
    assert data.load(tmp_path).measure_trivial_loss() == pytest.approx(-(math.log(a) + 2 * math.log(b)) / 3)


@pytest.mark.parametrize("layout", ["documents", "packed"])
def test_of_conversations_the_answers_alone_count(folder, layout):
    """What is asked, and the padding behind an answer, is neither counted nor predicted."""
    answers = Counter(b"".join(row["output"].encode() + b"\0" for row in QUESTIONS))
    corpora = [load(folder, "instructions", layout=layout, template=template) for template in ("alpaca", "plain")]
    for corpus in corpora:
        assert corpus.measure_trivial_loss() == pytest.approx(recount(corpus))
    assert corpora[0].measure_trivial_loss() == corpora[1].measure_trivial_loss()
    shares = [count / answers.total() for count in answers.values()]
    entropy = -sum(share * math.log(share) for share in shares)
    assert corpora[0].measure_trivial_loss() == pytest.approx(entropy, rel=0.1)


def test_padding_does_not_count(tmp_path):
    rows = [{"text": "x" * length} for length in (3, 9, 4, 8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Text(files=str(tmp_path / "rows.jsonl"), val_files=str(tmp_path / "val.txt"), layout="documents", seq_len=12)
    (tmp_path / "val.txt").write_text("xx")
    x, end = ((count + 2 / 256) / 26 for count in (20, 4))  # of a document of 3: x, x and the end
    assert data.load(tmp_path).measure_trivial_loss() == pytest.approx(-(math.log(x) + math.log(end)) / 2)


@pytest.mark.parametrize(("items", "most"), [(1, 1), (7, 100), (100, 100), (101, 100), (1000, 64), (1000, 10), (5, 1)])
def test_blocks_are_all_or_spread_evenly(items, most):
    numbers = [number for block in choose_blocks(items, most) for number in block]
    assert sorted(set(numbers)) == numbers
    assert 0 <= numbers[0] <= numbers[-1] < items
    assert len(numbers) == items if items <= most else 0 < len(numbers) <= most
    if items >= 1000:
        assert numbers[-1] > 0.8 * items


def test_of_a_large_text_parts_from_all_over_it_are_read(monkeypatch):
    """It is sorted: its beginning would tell nothing of the rest."""
    tokens = np.repeat(np.arange(8, dtype=np.uint8), 40_000)
    data = Windows(tokens, 31, np.arange(10_000))
    corpus = Corpus(data, data, "", 8, (31,), None, "")
    assert corpus.measure_trivial_loss() == pytest.approx(math.log(8))
    read = []
    plain = Windows.__getitems__
    monkeypatch.setattr(Windows, "__getitems__", lambda self, rows: read.append(len(rows)) or plain(self, rows))
    monkeypatch.setattr("ablate.data.base.MOST", 31 * 640)
    assert corpus.measure_trivial_loss() == pytest.approx(math.log(8), rel=0.01)
    assert sum(read) == 2 * (640 + 1)  # and an item to see how large one is
    assert len(read) == 2 * (base.BLOCKS + 1)


class Vectors(BatchDataset):
    """What a plugin may bring: targets of any type, and inputs of any size."""

    def __init__(self, targets):
        self.targets = targets

    def __len__(self):
        return len(self.targets)

    def __getitems__(self, indices):
        return torch.zeros(len(indices), 5), self.targets[torch.as_tensor(indices)]


@pytest.mark.parametrize(
    ("targets", "known"),
    [
        (torch.tensor([0, 1, 1, 2]), True),
        (torch.tensor([0, 1, 1, 2], dtype=torch.uint8), True),
        (torch.tensor([0, 1, IGNORED, 2]), True),
        (torch.eye(3), False),  # probabilities of the classes
        (torch.tensor([0, 1, 3]), False),  # no class
        (torch.tensor([0, 1, -1]), False),
        (torch.full((4,), IGNORED), False),
        (torch.zeros(0, dtype=torch.int64), False),
    ],
)
def test_of_targets_that_are_no_classes_it_cannot_be_told(targets, known):
    data = Vectors(targets)
    corpus = Corpus(data, data, "", 3, (5,), None, "")
    assert corpus.measure_trivial_loss() == (pytest.approx(recount(corpus)) if known else None)
