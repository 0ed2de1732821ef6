"""Validation data that is also training data: what is refused, with which share, and what is not."""

import json
import random
import re
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from ablate.config.errors import DataError
from ablate.data import ImageFolder, Instructions, Text
from ablate.data.overlap import measure_items, measure_texts
from ablate.data.user_datasets import UserDataset


def story(numbers):
    """Lines that nobody else writes, of one template."""
    return [f"Line {i} of a story about {i * 7 % 13} things and {i * 5 % 11} others." for i in numbers]


TRAIN = story(range(400))


def shuffled(lines):
    return random.Random(0).sample(lines, len(lines))


@pytest.fixture
def load(tmp_path):
    """load(content of the validation file, its name, settings) -> the corpus, trained on `TRAIN`."""
    (tmp_path / "train.txt").write_text("\n".join(TRAIN))

    def run(content, name="val.txt", **settings):
        (tmp_path / name).write_text(content) if isinstance(content, str) else content(tmp_path / name)
        where = settings.pop("where", {"val_files": str(tmp_path / name)})
        return Text(files=str(tmp_path / "train.txt"), seq_len=16, **where, **settings).load(tmp_path / "cache")

    return run


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(TRAIN),
        "\r\n".join(TRAIN) + "\r\n",
        "\n".join(TRAIN[-50:]),
        "\n".join(shuffled(TRAIN)[:40]),
        "\n".join(TRAIN)[100:3000],
    ],
    ids=["copy", "other line ends", "tail", "shuffled", "slice"],
)
def test_text_that_is_training_text_is_refused(load, content):
    with pytest.raises(
        DataError, match=r"^(100|9\d\.\d) % of data.val_files is also training data \('.*line .*max_overlap=1\."
    ):
        load(content)


def test_half_is_refused_with_its_share_and_a_little_is_told(load):
    with pytest.raises(DataError, match=r"^(4[5-9]|5[0-2])\.\d % of data.val_files is also training data"):
        load("\n".join(TRAIN[:100] + story(range(1000, 1110))))
    little = load("\n".join(TRAIN[:20] + story(range(1000, 1400))))
    (share,) = re.findall(r", ([\d.]+) % of data.val_files also training data", little.description)
    assert float(share) == pytest.approx(100 * 20 / 420, abs=1)
    assert load("\n".join(TRAIN), max_overlap=1).description.endswith("100 % of data.val_files also training data")


def test_other_text_of_the_same_template_is_accepted(load):
    assert "also training" not in load("\n".join(story(range(400, 800)))).description


def test_rows_of_another_format_and_order_are_found(load, tmp_path):
    def write(path):
        pa.parquet.write_table(pa.table({"text": shuffled(TRAIN)[:60]}), path)

    with pytest.raises(DataError, match=r"^100 % of data.val_files"):
        load(write, "val.parquet")
    further = {"val_sets": {"more": {"files": str(tmp_path / "val.parquet")}}}
    with pytest.raises(DataError, match=r"^9\d.\d % of data.val_sets.more"):
        load(write, "val.parquet", where=further)


def test_the_split_of_a_folder(tmp_path):
    for split, rows in {"train": TRAIN, "validation": TRAIN[100:150], "test": story(range(500, 600))}.items():
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / f"data/{split}.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    fields = {"dataset": str(tmp_path / "data"), "seq_len": 16}
    with pytest.raises(DataError, match=r"^100 % of data.val_split"):
        Text(**fields, val_split="validation").load(tmp_path / "cache")
    assert "also training" not in Text(**fields, val_split="test").load(tmp_path / "cache").description


def test_short_lines_that_many_texts_have_make_no_copy():
    common = ["Yes.", "See also", "Licensed under the terms of the licence beside this file.", ""]
    train = ["\n".join([*common, *story(range(n, n + 9))]) for n in range(0, 400, 10)]
    val = ["\n".join([*common, *story(range(n, n + 9))]) for n in range(4000, 4400, 10)]
    assert measure_texts(train, val).share == 0
    assert measure_texts(train, [*val, *train[:40]]).share == pytest.approx(0.5, abs=0.05)


def test_a_long_line_is_cut_into_sentences_and_one_without_any_behind_words():
    sentences = " ".join(TRAIN)
    words = sentences.replace(".", "").replace("story", "tale")
    assert measure_texts([sentences], [sentences[5000:9000]]).share > 0.9
    assert measure_texts([words], [words[5000:9000]]).share > 0.9
    assert measure_texts([sentences], [words]).share == 0


def draw(seed, line, count):
    rng = random.Random(seed)
    return "\n".join(line(rng, number) for number in range(count))


def build_record(rng, number):
    fields = {"city": rng.choice(["Berlin", "Paris", "Rome", "Oslo"]), "age": rng.randrange(18, 90)}
    return json.dumps({"id": f"{rng.random()}", **fields, "income": rng.choice(["<=50K", ">50K"])}, indent=1)


@pytest.mark.parametrize(
    "line",
    [
        build_record,
        lambda rng, number: f"{rng.randrange(1000):03d}",
        lambda rng, number: ",".join(rng.choice(["red", "green", "blue"]) for _ in range(6)),
        lambda rng, number: "".join(rng.choice("acgt") for _ in range(70)),
    ],
    ids=["records", "three digits", "categories", "bases"],
)
def test_texts_that_are_alike_without_being_copies_are_accepted(line):
    train = draw(0, line, 5000)
    assert measure_texts([train], [draw(1, line, 300)]).share < 0.03
    assert measure_texts([train], [draw(1, line, 300), train[4000:40000]]).share > 0.5


@pytest.mark.parametrize(
    "change",
    [
        lambda text: textwrap.fill(text, 60),
        str.upper,
        lambda text: text.replace(" ", "  "),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace("\n", " ")[777:9999],
    ],
    ids=["other lines", "other case", "doubled blanks", "line ends", "a window"],
)
def test_copies_of_another_look_are_found(change):
    numbers = draw(0, lambda rng, number: " ".join(f"{rng.randrange(10**6)}" for _ in range(9)), 400)
    assert measure_texts(["another text", numbers], [change(numbers)]).share > 0.95


def test_of_many_files_a_long_one_is_read_whole(load, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("ablate.data.text.sources.MOST_COMPARED", 30_000)
    for number in range(50):
        (tmp_path / f"more{number}.txt").write_text(f"Number {number}.")
    fields = {"files": str(tmp_path / "*.txt"), "val_files": str(tmp_path / "held.md"), "seq_len": 16}
    (tmp_path / "train.txt").write_text("\n".join(TRAIN))
    (tmp_path / "held.md").write_text("\n".join(TRAIN[-50:]))
    with pytest.raises(DataError, match=r"^(100|9\d(\.\d)?) % of data.val_files"):
        Text(**fields).load(tmp_path / "cache")
    assert not caplog.records
    monkeypatch.setattr("ablate.data.text.sources.MOST_COMPARED", 100)
    Text(**fields).load(tmp_path / "other")
    assert "compared with the validation text" in caplog.text


def test_items_are_counted():
    assert measure_items([1, 2, 3], [4, 3, 5, 1]) == (0.5, "item 1")
    assert measure_items([1], []) == (0.0, "")


def test_images_under_other_names(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), np.uint8)
    for number, pixels in enumerate(noise):
        side, of_class = ("train", number % 2) if number < 30 else ("val", number % 2)
        path = tmp_path / f"root/{side}/{'ab'[of_class]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    config = ImageFolder(root=str(tmp_path / "root"), image_size=8)
    assert "also training" not in config.load(tmp_path / "cache").description
    for number in (0, 2):
        copy = (tmp_path / f"root/train/a/{number}.png").read_bytes()
        (tmp_path / f"root/val/a/copy{number}.png").write_bytes(copy)
    with pytest.raises(DataError, match=r"^16.7 % of the validation images is also training .*val/a/copy0.png'"):
        config.load(tmp_path / "cache")
    accepted = config.model_copy(update={"max_overlap": 0.17}).load(tmp_path / "cache")
    assert "16.7 % of the validation images also training data" in accepted.description


def test_instructions(tmp_path):
    def write(name, numbers):
        rows = [{"instruction": f"Count to {n}.", "output": f"{n} it is."} for n in numbers]
        (tmp_path / name).write_text(json.dumps(rows))
        return str(tmp_path / name)

    fields = {"files": write("train.json", range(40)), "seq_len": 300}
    with pytest.raises(DataError, match=r"^50 % of the validation examples is also training data"):
        Instructions(**fields, val_files=write("val.json", range(30, 50))).load(tmp_path)
    apart = Instructions(**fields, val_files=write("val.json", range(40, 50))).load(tmp_path)
    assert "also training" not in apart.description


@pytest.mark.parametrize("name", [None, "the items that count to 40"])
def test_datasets_of_a_plugin(tmp_path, name):
    class Mine(UserDataset):
        kind: str = "mine"
        classes = 2
        shared: int

        def build(self):
            items = [(torch.full((2,), float(n)), n % 2) for n in range(40)]
            return items[: 20 + self.shared], items[20:]

        def identify(self):
            return name

    assert "also" not in Mine(shared=0).load(tmp_path).description
    with pytest.raises(DataError, match=r"^25 % of the validation items of mine is also training data"):
        Mine(shared=5).load(tmp_path)


def test_what_is_held_out_of_data_with_copies_is_warned_of(tmp_path, caplog):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("\n".join(TRAIN))
    Text(files=str(tmp_path / "*.txt"), seq_len=16).load(tmp_path / "cache")
    assert any("of the held-out text is also training data, since" in message for message in caplog.messages)
