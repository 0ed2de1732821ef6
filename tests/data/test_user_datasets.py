"""Datasets of a plugin: read in Ablate's order, random changes seeded, hashed; what cannot be read is refused."""

from typing import ClassVar, Literal

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from ablate.config.errors import DataError
from ablate.data import UserDataset

IMAGES = torch.arange(20.0).repeat_interleave(4).view(20, 1, 2, 2)
LABELS = torch.arange(20) % 3


class Noisy(TorchDataset):
    """Images with noise from torch's global generator."""

    classes = ("a", "b", "c")

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return IMAGES[index] + 0.1 * torch.rand(1, 2, 2), int(LABELS[index])


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(IMAGES, LABELS, strict=True)


class Module(LightningDataModule):
    def __init__(self, collate):
        super().__init__()
        self.collate = collate

    def train_dataloader(self):
        return DataLoader(Noisy(), batch_size=7, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self):
        return DataLoader(TensorDataset(IMAGES[:4], LABELS[:4]), collate_fn=self.collate)


def collate(samples):
    """Return images and classes, the images doubled."""
    return 2 * torch.stack([image for image, _ in samples]), torch.tensor([int(label) for _, label in samples])


def load(tmp_path, build, **members):
    """Return the corpus of a UserDataset with these members."""
    annotations = {"task": ClassVar[str], "kind": Literal["mine"], "classes": ClassVar[int | None]}
    content = {"__annotations__": annotations, "kind": "mine", "task": "image_classification", "classes": None}
    own = type("Mine", (UserDataset,), {"__module__": __name__, "build": lambda self: build, **content, **members})
    return own(val_fraction=0.2).load(tmp_path)


def read(corpus, count, **place):
    batches = iter(corpus.train.batches(4, 5, **place))
    return [next(batches) for _ in range(count)]


def test_a_dataset_of_torch_is_split_counted_and_read_once_per_epoch(tmp_path):
    corpus = load(tmp_path, (Noisy(), None))
    assert (corpus.classes, corpus.shape, len(corpus.train), len(corpus.val)) == (3, (1, 2, 2), 16, 4)
    drawn = torch.cat([inputs for inputs, _ in read(corpus, 4)])[:, 0, 0, 0].floor()
    held_out = corpus.val.__getitems__(range(4))[0][:, 0, 0, 0].floor()
    assert sorted(torch.cat([drawn, held_out]).tolist()) == list(range(20))


def test_random_changes_depend_on_seed_epoch_and_item_alone(tmp_path):
    corpus = load(tmp_path, (Noisy(), None))
    torch.manual_seed(1)
    whole = read(corpus, 8)
    torch.manual_seed(2)
    assert torch.equal(whole[6][0], read(corpus, 1, start_batch=6)[0][0])
    assert torch.equal(whole[0][0], torch.cat([read(corpus, 1, rank=rank, world_size=2)[0][0] for rank in (0, 1)]))
    assert torch.equal(whole[0][0], read(corpus, 1, workers=1)[0][0])
    first, second = (torch.cat([b[0] for b in part]).flatten() for part in (whole[:4], whole[4:]))
    assert not set(first.tolist()) & set(second.tolist())  # another draw in the second epoch
    assert torch.equal(*(corpus.val.__getitems__([0, 1])[0] for _ in range(2)))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    read(corpus, 1)
    assert torch.equal(torch.rand(1), expected)  # the generator of the run is as it was


def test_the_fingerprint_follows_the_content(tmp_path, monkeypatch):
    one = load(tmp_path, (TensorDataset(IMAGES, LABELS), None), classes=3).fingerprint
    assert load(tmp_path, (TensorDataset(IMAGES, LABELS), None), classes=3).fingerprint == one
    changed = IMAGES.clone()
    changed[7, 0, 0, 0] += 1
    assert load(tmp_path, (TensorDataset(changed, LABELS), None), classes=3).fingerprint != one
    named = load(tmp_path, (Noisy(), None), identify=lambda self: "noisy 1").fingerprint
    assert named == load(tmp_path, (Noisy(), None), identify=lambda self: "noisy 1").fingerprint != one


def test_items_that_are_others_each_time_have_no_fingerprint(tmp_path, caplog):
    generator = torch.Generator()

    class OwnNoise(Noisy):
        def __getitem__(self, index):
            return IMAGES[index] + torch.rand(1, 2, 2, generator=generator), int(LABELS[index])

    assert load(tmp_path, (OwnNoise(), None)).fingerprint == ""
    assert "Data mine: its items differ at each reading" in caplog.text
    assert "Define `identify()`" in caplog.text
    caplog.clear()
    assert load(tmp_path, (OwnNoise(), None), identify=lambda self: "1").fingerprint
    assert load(tmp_path, (Noisy(), None)).fingerprint
    assert not caplog.text


def test_rows_of_the_library_datasets_are_converted(tmp_path):
    features = Features({"words": Sequence(Value("int64")), "label": ClassLabel(names=["a", "b"])})
    rows = Dataset.from_dict({"words": [[i, i + 1] for i in range(8)], "label": [i % 2 for i in range(8)]}, features)

    def convert(self, row):
        return torch.tensor(row["words"]), row["label"]

    corpus = load(tmp_path, (rows.select(range(6)), rows.select([6, 7])), convert=convert)
    assert (corpus.classes, corpus.shape, len(corpus.train), len(corpus.val)) == (2, (2,), 6, 2)
    inputs, targets = corpus.val.__getitems__([0, 1])
    assert inputs.tolist() == [[6, 7], [7, 8]]
    assert targets.tolist() == [0, 1]


def test_a_lightning_module_gives_datasets_and_collation_but_no_order(tmp_path, caplog):
    with caplog.at_level("INFO", "ablate"):
        corpus = load(tmp_path, Module(collate))
    assert "order, batch size and workers are Ablate's, not those of Module's loaders" in caplog.text
    assert (len(corpus.train), len(corpus.val)) == (20, 4)
    assert torch.equal(corpus.val.__getitems__([3])[0], 2 * IMAGES[3:4])
    ((inputs, _),) = read(corpus, 1)
    plain = load(tmp_path, (Noisy(), TensorDataset(IMAGES[:4], LABELS[:4])))
    assert torch.equal(inputs, 2 * read(plain, 1)[0][0])


def test_an_empty_part_of_a_rank_has_the_shape_of_a_batch(tmp_path):
    inputs, targets = load(tmp_path, (Noisy(), None)).val.__getitems__([])
    assert (inputs.shape, targets.shape) == ((0, 1, 2, 2), (0,))


@pytest.mark.parametrize(
    ("build", "members", "message"),
    [
        ((Stream(), None), {}, r"a Stream has no length .*give a map-style dataset"),
        ((Noisy(),), {}, r"build\(\) returned 1 datasets, not two"),
        ("images", {}, r"build\(\) returned a str. Accepted: \(training, validation\) datasets or a Lightning"),
        ((TensorDataset(IMAGES, LABELS), None), {}, "how many classes or tokens there are is unknown"),
        ((TensorDataset(IMAGES, LABELS), None), {"classes": 2}, "has the target 2, and there are 2 classes, from 0"),
        ((TensorDataset(IMAGES), None), {"classes": 2}, r"an item is a tuple, not \(input, target\)"),
        (([(IMAGES[0], "cat")] * 3, None), {"classes": 2}, "has a str, which is neither a tensor nor a number"),
        (([], []), {"classes": 2}, "the training dataset has no items"),
        (([(IMAGES[0], 0)], None), {"classes": 2}, "Too little data: 1 items"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, build, members, message):
    with pytest.raises(DataError, match=message):
        load(tmp_path, build, **members)


def test_items_of_different_shapes_need_a_collate(tmp_path):
    rows = [(torch.zeros(n), 0) for n in (1, 2, 3, 4)]
    corpus = load(tmp_path, (rows, [(torch.ones(n), 0) for n in (1, 2)]), classes=2)
    with pytest.raises(DataError, match=r"Items of different shapes need a `collate"):
        corpus.val.__getitems__([0, 1])
