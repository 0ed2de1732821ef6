"""Images in tables: parquet, arrow, saved datasets, the hub's errors, and what is said about wrong ones."""

import errno
import io
import pickle
import re

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from PIL import Image

from ablate.config.errors import DataError
from ablate.data import ImageDataset, ImageFiles, ImageFolder
from ablate.experiment.tree import Experiment
from ablate.tracking.paths import cache_folder
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train

NAMES = ["cat", "dog", "emu"]


def encoded(number):
    """A PNG of one grey value."""
    buffer = io.BytesIO()
    Image.new("RGB", (6, 6), (number * 10,) * 3).save(buffer, "PNG")
    return buffer.getvalue()


def table(labels=(0, 1, 2, 0, 1, 2, 0, 1), image="image", label="label", feature=None, images=None):
    images = [encoded(n) for n in range(len(labels))] if images is None else images
    features = Features({image: datasets.Image(), label: feature or ClassLabel(names=NAMES)})
    rows = {image: [content and {"bytes": content, "path": None} for content in images], label: list(labels)}
    return Dataset.from_dict(rows, features=features)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path):
    """A parquet file of eight images, another of three, and the same as arrow."""
    train, val = table(), table((2, 1, 0))
    train.to_parquet(tmp_path / "train.parquet")
    val.to_parquet(tmp_path / "val.parquet")
    DatasetDict({"train": train, "validation": val, "test": val}).save_to_disk(tmp_path / "saved")
    return tmp_path


def load(cache, **settings):
    kind = ImageFiles if "files" in settings else ImageDataset
    return kind(image_size=6, mean=(0, 0, 0), std=(1, 1, 1), **{"max_overlap": 1, **settings}).load(cache)


def greys(dataset):
    images, labels = dataset.__getitems__(range(len(dataset)))
    return [round(image.mean().item() * 25.5) for image in images], labels.tolist()


def test_every_source_gives_the_same_corpus(files, cache):
    (files / "copy/data").mkdir(parents=True)
    (files / "copy/data/train-00000-of-00001.parquet").write_bytes((files / "train.parquet").read_bytes())
    (files / "copy/data/validation-00000-of-00001.parquet").write_bytes((files / "val.parquet").read_bytes())
    found = [
        load(cache, files=str(files / "train.parquet"), val_files=[str(files / "val.parquet")]),
        load(cache, files=str(files / "saved/train/*.arrow"), val_files=str(files / "saved/validation/*.arrow")),
        load(cache, dataset=str(files / "saved")),
        load(cache, dataset=str(files / "copy")),
    ]
    for corpus in found:
        assert greys(corpus.train) == (list(range(8)), [0, 1, 2, 0, 1, 2, 0, 1])
        assert greys(corpus.val) == ([0, 1, 2], [2, 1, 0])
        assert (corpus.classes, corpus.shape, corpus.train.class_names) == (3, (3, 6, 6), tuple(NAMES))
        assert corpus.fingerprint == found[0].fingerprint
        again = pickle.loads(pickle.dumps(corpus.train))  # noqa: S301
        assert torch.equal(again[5][0], corpus.train[5][0])
    assert found[2].description.endswith("3 classes; read: train, validation; not read: test")


def test_without_a_validation_split_a_part_is_held_out(files, cache):
    corpus = load(cache, files=str(files / "train.parquet"), val_fraction=0.25)
    both = [greys(corpus.train)[0], greys(corpus.val)[0]]
    assert sorted(both[0] + both[1]) == list(range(8))
    assert len(both[1]) == 2
    named = load(cache, dataset=str(files / "saved"), val_split="test", train_split="validation")
    assert (greys(named.train)[1], greys(named.val)[1]) == ([2, 1, 0], [2, 1, 0])


def test_several_files_follow_one_another(files, cache):
    corpus = load(cache, files=[str(files / "val.parquet"), str(files / "train.parquet")], val_fraction=0.01)
    assert len(corpus.train) + len(corpus.val) == 11


def test_content_alone_makes_the_fingerprint(files, cache):
    first = load(cache, files=str(files / "train.parquet")).fingerprint
    (files / "train.parquet").rename(files / "other.parquet")
    assert load(cache, files=str(files / "other.parquet"), check=False).fingerprint == first
    table((0, 1, 2, 0, 1, 2, 0, 2)).to_parquet(files / "other.parquet")
    relabelled = load(cache, files=str(files / "other.parquet")).fingerprint
    table(images=[encoded(n + 1) for n in range(8)]).to_parquet(files / "other.parquet")
    assert len({first, relabelled, load(cache, files=str(files / "other.parquet")).fingerprint}) == 3


@pytest.mark.parametrize(
    ("labels", "feature", "names"),
    [
        ([7, 3, 7, 3], Value("int64"), ("3", "7")),
        (["b", "a", "b", "a"], Value("string"), ("a", "b")),
        ([10, 9, 10, 9], Value("int32"), ("9", "10")),
    ],
)
def test_labels_without_names_are_their_sorted_values(tmp_path, cache, labels, feature, names):
    table(labels, feature=feature).to_parquet(tmp_path / "a.parquet")
    corpus = load(cache, files=str(tmp_path / "a.parquet"), val_files=str(tmp_path / "a.parquet"))
    assert (corpus.train.class_names, greys(corpus.train)[1]) == (names, [1, 0, 1, 0])


@pytest.mark.parametrize("kind", ["binary", "struct", "path"])
def test_tables_that_datasets_did_not_write(tmp_path, cache, kind):
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(encoded(number))
    column = {
        "binary": [encoded(n) for n in range(4)],
        "struct": [{"bytes": encoded(n), "path": f"{n}.png"} for n in range(4)],
        "path": [str(tmp_path / f"{n}.png") for n in range(4)],
    }[kind]
    pa.parquet.write_table(pa.table({"picture": column, "label": [0, 1, 1, 0]}), tmp_path / "a.parquet")
    name = str(tmp_path / "a.parquet")
    corpus = load(cache, files=name, val_files=name, image_column="picture")
    assert greys(corpus.train) == ([0, 1, 2, 3], [0, 1, 1, 0])


def fails(cache, match, **settings):
    with pytest.raises(DataError, match=match) as caught:
        load(cache, **settings)
    return str(caught.value)


def test_columns_that_are_missing_or_hold_something_else(files, cache):
    name = str(files / "train.parquet")
    fails(cache, "no column 'imag', only image, label. Set data.image_column. Did you mean image", files=name,
          image_column="imag")  # fmt: skip
    fails(cache, "no column 'y', only image, label. Set data.label_column", files=name, label_column="y")
    fails(cache, "'label' of .* contains int64, not images. Set data.image_column. Did you mean image", files=name,
          image_column="label")  # fmt: skip
    fails(cache, "'image' of .* contains struct.*, not labels", files=name, label_column="image")
    table(image="img", label="fine").to_parquet(files / "b.parquet")  # found by their types
    assert load(cache, files=str(files / "b.parquet")).classes == 3
    both = table().add_column("coarse", [0] * 8).cast_column("coarse", ClassLabel(names=["a", "b"]))
    both.rename_column("label", "fine").to_parquet(files / "c.parquet")
    fails(cache, "no column 'label', only image, fine, coarse. Set data.label_column", files=str(files / "c.parquet"))


def test_labels_that_cannot_be_used(tmp_path, cache):
    def write(*args, **more):
        table(*args, **more).to_parquet(tmp_path / "a.parquet")
        return str(tmp_path / "a.parquet")

    fails(cache, "Row 1 of .* is not labelled; its 3 classes are 0 to 2", files=write([0, -1, 2]))
    fails(
        cache, "only the class 'a'. A classifier needs at least two", files=write(["a", "a"], feature=Value("string"))
    )
    fails(cache, "Row 2 of .* has no label", files=write([0, 1, None]))
    table([0, 1], feature=ClassLabel(names=["cat", "dgo"])).to_parquet(tmp_path / "v.parquet")
    fails(cache, r"different classes. .*validation lacks dog, emu. training lacks dgo. Did you mean dog",
          files=write(), val_files=str(tmp_path / "v.parquet"))  # fmt: skip
    table(["a", "q"], feature=Value("string")).to_parquet(tmp_path / "v.parquet")
    fails(cache, "labels that are missing in the training split: q", files=write(["a", "b"], feature=Value("string")),
          val_files=str(tmp_path / "v.parquet"))  # fmt: skip


def test_validation_classes_in_another_order_are_mapped(tmp_path, cache):
    table().to_parquet(tmp_path / "a.parquet")
    table([0, 1, 2], feature=ClassLabel(names=["emu", "cat", "dog"])).to_parquet(tmp_path / "v.parquet")
    corpus = load(cache, files=str(tmp_path / "a.parquet"), val_files=str(tmp_path / "v.parquet"))
    assert greys(corpus.val)[1] == [2, 0, 1]


def test_broken_rows(tmp_path, cache):
    table(images=[encoded(0), b"nothing", *(encoded(n) for n in range(5)), None]).to_parquet(tmp_path / "a.parquet")
    name = str(tmp_path / "a.parquet")
    message = fails(cache, "2 images cannot be decoded", files=name)
    assert "in row 1 of the table of data.files, split train: not an image" in message
    assert "in row 7 of the table of data.files, split train: there is no image in this row" in message
    table(images=[encoded(0), b"nothing", *(encoded(n) for n in range(6))]).to_parquet(tmp_path / "b.parquet")
    corpus = load(cache, files=str(tmp_path / "b.parquet"), check=False)
    where = list(corpus.train.rows).index(1)
    with pytest.raises(DataError, match=r"The image in row 1 of .*, split train cannot be decoded: not an image"):
        corpus.train[where]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_ends_at_a_broken_image_with_one_line(store, tmp_path, workers):
    table(images=[b"nothing"] * 8).save_to_disk(tmp_path / "broken")
    experiment = Experiment.from_mapping({
        "model": {"kind": "vit", "hidden": 8, "layers": 1, "heads": 1, "patch_size": 4},
        "data": {"kind": "image_dataset", "dataset": str(tmp_path / "broken"), "image_size": 8, "check": False},
        "trainer": {"max_steps": 2, "batch_size": 4, "num_workers": workers},
    })  # fmt: skip
    with pytest.raises(DataError) as caught:
        train(experiment)
    line = r"The image in row \d of the dataset .*, split train cannot be decoded: not an image"
    assert re.fullmatch(line, str(caught.value))


def test_files_that_are_missing_or_something_else(files, cache):
    fails(cache, r"There is no file .*/nope.parquet", files=str(files / "nope.parquet"))
    (files / "a.csv").touch()
    fails(cache, "unknown suffix '.csv'. Accepted: .parquet, .arrow", files=str(files / "a.csv"))
    for name in ("a.parquet", "a.arrow"):
        (files / name).write_bytes(b"nothing of the kind")
        fails(cache, f"{name} is not a readable {name[2:]} file: ", files=str(files / name))
    fails(cache, "is a file, and `dataset` must be a folder", dataset=str(files / "train.parquet"))
    fails(cache, "There is no folder .*/sved. Did you mean saved", dataset=str(files / "sved"))
    fails(cache, "no split 'dev', only train, validation, test", dataset=str(files / "saved"), val_split="dev")


@pytest.fixture
def hub(monkeypatch):
    """hub(result or error): what `datasets.load_dataset` gives for a name on the hub."""

    def answer(what):
        def load_dataset(name, subset=None, **more):
            if isinstance(what, BaseException):
                raise what
            return what

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.setattr("ablate.data.hub.pin_commit", lambda *_: "1")

    return answer


def test_the_usual_names_of_splits_are_known(hub, cache):
    parts = DatasetDict({"Training": table(), "Dev": table((2, 1, 0)), "eval": table([0, 1, 2]), "test": table()})
    hub(parts)
    corpus = load(cache, dataset="me/x")
    assert (len(corpus.train), len(corpus.val)) == (8, 3)
    assert corpus.description.endswith("read: Training, Dev; not read: eval, test")
    assert len(load(cache, dataset="me/x", train_split="eval", val_split="Training").train) == 3
    hub(DatasetDict({**parts, "valid": table()}))
    fails(cache, "the dataset me/x has two splits for validation, Dev and valid", dataset="me/x")
    assert len(load(cache, dataset="me/x", train_split="Training", val_split="valid").val) == 8


def test_what_the_hub_says_becomes_what_to_do(hub, cache):
    missing = datasets.exceptions.DatasetNotFoundError
    hub(missing("Dataset 'me/x' is a gated dataset on the Hub. You must be authenticated to access it."))
    fails(cache, "'me/x' is gated.*https://huggingface.co/datasets/me/x, then log in .* data.dataset", dataset="me/x")
    hub(missing("Dataset 'me/x' doesn't exist on the Hub or cannot be accessed."))
    fails(
        cache,
        "There is no dataset 'me/x' on the Hugging Face hub, or it is private, and there is no local folder",
        dataset="me/x",
    )
    hub(ConnectionError("Couldn't reach 'me/x' on the Hub (LocalEntryNotFoundError)"))
    fails(cache, "hub could not be reached for the dataset 'me/x' .* as data.dataset", dataset="me/x")
    hub(ValueError("BuilderConfig 'q' not found. Available: ['a', 'b']"))
    fails(cache, r"'me/x' cannot be read: BuilderConfig 'q' not found. Available: \['a', 'b'\]", dataset="me/x")
    error = datasets.exceptions.DatasetGenerationError("An error occurred while generating the dataset")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    hub(error)
    fails(
        cache,
        "no space for the dataset 'me/x': No space left on device. Set HF_HOME to a folder on another disk",
        dataset="me/x",
    )


@pytest.fixture
def noisy(tmp_path):
    """Settings of a short run with the whole recipe on a saved table of 22 noisy images, in three epochs."""
    noise = np.random.default_rng(0)
    contents = []
    for _ in range(22):
        buffer = io.BytesIO()
        Image.fromarray(noise.integers(0, 256, (9, 8, 3), np.uint8)).save(buffer, "PNG")
        contents.append(buffer.getvalue())
    table([n % 3 for n in range(22)], images=contents).save_to_disk(tmp_path / "noisy")
    return {
        "model": {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2, "patch_size": 4, "drop_path": 0.2},
        "data": {"kind": "image_dataset", "dataset": str(tmp_path / "noisy"), "image_size": 8, "augment": "convnext"},
        "trainer": {"max_steps": 12, "batch_size": 4, "val_check_interval": 6, "ema_decay": 0.5},
    }


def test_workers_and_interruptions_do_not_change_a_number(store, noisy):
    whole = train(Experiment.from_mapping(noisy))
    assert whole.status == "completed"
    others = Experiment.from_mapping(noisy, {"trainer.num_workers": 2})
    assert train(others).metrics == whole.metrics
    for experiment in (Experiment.from_mapping(noisy), others):
        asked = iter(range(1, 100))
        part = train(experiment, hooks=Hooks(asked_to_stop=lambda asked=asked: next(asked) == 5))
        assert (part.status, part.step) == ("interrupted", 5)
        assert train(experiment, Place(run_id=part.run_id)).metrics == whole.metrics
    assert train(Experiment.from_mapping(noisy, {"data.augment": "none"})).metrics != whole.metrics


def test_an_image_folder_and_a_table_of_the_same_images_train_alike(store, noisy, tmp_path):
    data = datasets.load_from_disk(str(tmp_path / "noisy")).cast_column("image", datasets.Image(decode=False))
    for number, row in enumerate(data.sort("label")):
        folder = tmp_path / "root" / NAMES[row["label"]]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.png").write_bytes(row["image"]["bytes"])
    data.sort("label").cast_column("image", datasets.Image()).save_to_disk(tmp_path / "sorted")
    common = {"image_size": 8, "augment": "convnext"}
    from_table = ImageDataset(dataset=str(tmp_path / "sorted"), **common).load(cache_folder()).train.bind_seed(1)
    from_folder = ImageFolder(root=str(tmp_path / "root"), **common).load(cache_folder()).train.bind_seed(1)
    for a, b in zip(from_table.__getitems__([1, 30, 4, 9]), from_folder.__getitems__([1, 30, 4, 9]), strict=True):
        assert torch.equal(a, b)
