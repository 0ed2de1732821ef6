"""Documents out of files and datasets: the same by every way, and taken up anywhere."""

import gzip
import json
import types

import datasets
import huggingface_hub.errors
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ablate.config.errors import DataError
from ablate.data import Text, hub
from ablate.data.base import Origin
from ablate.data.files import find_files
from ablate.data.text.sources import HashSplit, open_dataset, open_source

TEXTS = [f"{number} {'x' * (number % 7)} é" for number in range(60)]


@pytest.fixture(autouse=True)
def hub_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def lines(texts):
    return "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts).encode()


def write(kind, folder, texts=TEXTS):
    """`texts` in two files of the format `kind`; the glob that names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate((texts[:40], texts[40:])):
        file, table = folder / f"{number}.{kind}", pa.table({"text": part, "id": [1] * len(part)})
        if kind == "jsonl":
            file.write_bytes(lines(part))
        elif kind == "jsonl.gz":
            file.write_bytes(gzip.compress(lines(part)))
        elif kind == "jsonl.zst":
            with pa.CompressedOutputStream(str(file), "zstd") as out:
                out.write(lines(part))
        elif kind == "parquet":
            pq.write_table(table, file, row_group_size=9)
        else:
            new = pa.ipc.new_file if kind == "feather.arrow" else pa.ipc.new_stream
            with new(file, table.schema) as out:
                out.write_table(table, max_chunksize=9)
    return str(folder / f"*.{kind}")


FORMATS = ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "arrow", "feather.arrow"]


def source_of(files=(), dataset=None, cache=None, split="train", subset=None):
    return open_source(Origin((files,) if files else (), dataset, subset, split), "text", cache)


@pytest.fixture(params=[*FORMATS, "folder", "saved", "part"])
def source(request, tmp_path):
    """`TEXTS` from each origin, and one side of them."""
    cache = tmp_path / "cache"
    if request.param in FORMATS:
        return source_of(write(request.param, tmp_path / "files"), cache=cache)
    if request.param == "saved":
        data = datasets.Dataset.from_dict({"text": TEXTS, "id": [1] * len(TEXTS)})
        datasets.DatasetDict({"train": data}).save_to_disk(str(tmp_path / "saved"), num_shards={"train": 3})
        return source_of(dataset=str(tmp_path / "saved"), cache=cache)
    write("jsonl", tmp_path / "folder" / "train")
    whole = source_of(dataset=str(tmp_path / "folder"), cache=cache)
    return whole if request.param == "folder" else HashSplit(whole, False, 0.3, 0)


def test_every_way_gives_the_same_documents(source):
    for _ in range(2):
        whole = [piece.text for piece in source.read()]
        assert whole == TEXTS or isinstance(source, HashSplit)
        assert whole == [text for text in TEXTS if text in whole]


def test_a_long_document_is_on_one_side(tmp_path, monkeypatch):
    monkeypatch.setattr("ablate.data.text.sources.PIECE", 10)
    for number in range(8):
        (tmp_path / f"{number}.txt").write_text(f"{number}2345\n" * 7)
    whole = source_of(str(tmp_path / "*.txt"), cache=tmp_path)
    sides = [list(HashSplit(whole, held_out, 0.5, 1).read()) for held_out in (True, False)]
    assert sorted(piece.text[0] for side in sides for piece in side if piece.last) == list("01234567")
    assert not {piece.text[0] for piece in sides[0]} & {piece.text[0] for piece in sides[1]}
    assert sum(map(len, sides)) == len(list(whole.read()))


def test_both_sides_make_up_the_whole_and_share_no_text(tmp_path):
    texts = TEXTS * 3
    whole = source_of(write("jsonl", tmp_path / "f", texts), cache=tmp_path)
    train, val = ([piece.text for piece in HashSplit(whole, side, 0.3, 5).read()] for side in (False, True))
    assert sorted(train + val) == sorted(texts)
    assert not set(train) & set(val)
    assert 5 < len(set(val)) < 32
    other = [piece.text for piece in HashSplit(whole, True, 0.3, 6).read()]
    more = {piece.text for piece in HashSplit(whole, True, 0.6, 5).read()}
    assert other != val
    assert set(val) < more


def test_fingerprints_are_of_the_content(tmp_path):
    names = [write("jsonl", tmp_path / "a" / "train"), write("jsonl", tmp_path / "b" / "train")]
    assert len({source_of(name, cache=tmp_path).fingerprint for name in names}) == 1
    folders = [source_of(dataset=str(tmp_path / name), cache=tmp_path) for name in "ab"]
    assert folders[0].fingerprint == folders[1].fingerprint
    write("jsonl", tmp_path / "b" / "train", TEXTS[1:])
    assert source_of(dataset=str(tmp_path / "b"), cache=tmp_path).fingerprint != folders[0].fingerprint


def test_a_dataset_in_a_folder_trains(tmp_path):
    write("parquet", tmp_path / "data" / "train", TEXTS * 9)
    write("parquet", tmp_path / "data" / "validation", ["something else"] * 50)
    corpus = Text(dataset=str(tmp_path / "data"), val_split="validation", seq_len=8).load(tmp_path / "cache")
    assert bytes(corpus.val[0][0].tolist()) == b"somethin"
    held = Text(dataset=str(tmp_path / "data"), seq_len=8, layout="documents", val_fraction=0.3).load(
        tmp_path / "cache"
    )
    assert len(held.train) + len(held.val) == len(TEXTS) * 9
    assert held.fingerprint != corpus.fingerprint


def fails(match, tmp_path, **fields):
    with pytest.raises(DataError, match=match):
        Text(seq_len=4, **fields).load(tmp_path / "cache")


def test_what_is_wrong_with_a_folder(tmp_path):
    write("jsonl", tmp_path / "data" / "train")
    fails(r"data \(train\), row 1: no column 'body'. Columns: 'text', 'id'", tmp_path,
          dataset=str(tmp_path / "data"), column="body")  # fmt: skip
    fails(r"row 1: 'id' must be a string, but is a number", tmp_path, dataset=str(tmp_path / "data"), column="id")
    fails(r"Bad split: dev. Available splits: \['train'\].* without a split 'dev' needs data.val_split=null",
          tmp_path, dataset=str(tmp_path / "data"), val_split="dev")  # fmt: skip
    fails(r"'en' not found. Available: \['default'\]. A folder without a subset 'en' needs data.subset=null", tmp_path,
          dataset=str(tmp_path / "data"), subset="en")  # fmt: skip
    fails(r"There is no folder /.*/dat. Did you mean data\?", tmp_path, dataset=str(tmp_path / "dat"))
    fails(r"0.jsonl is a file, and `dataset` must be a folder.*`files`", tmp_path,
          dataset=str(tmp_path / "data/train/0.jsonl"))  # fmt: skip
    (tmp_path / "empty").mkdir()
    fails(r"The folder /.*/empty has no files", tmp_path, dataset=str(tmp_path / "empty"))


@pytest.mark.parametrize("kind", ["jsonl.gz", "arrow", "feather.arrow"])
def test_damaged_files_are_named(tmp_path, kind):
    files = write(kind, tmp_path)
    damaged = tmp_path / f"1.{kind}"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    fails(f"/1.{kind} (cannot be read|is not a readable arrow file): ", tmp_path, files=files)


RESPONSE = types.SimpleNamespace(headers={}, request=None, status_code=404)


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (huggingface_hub.errors.GatedRepoError, "'x/y' is gated.*Agree to it on https://.*/datasets/x/y, then log in"),
        (huggingface_hub.errors.RepositoryNotFoundError, "There is no dataset 'x/y' on the .* hub, or it is private"),
        (huggingface_hub.errors.RevisionNotFoundError, "'x/y' has no such revision"),
    ],
)
def test_what_the_hub_refuses(tmp_path, monkeypatch, error, match):
    def refuse(*args, **kwargs):
        raise error("no", response=RESPONSE)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    fails(match, tmp_path, dataset="x/y")


def test_gated_is_found_before_a_download(tmp_path, monkeypatch):
    info = type("Info", (), {"gated": "manual", "sha": "1"})

    def refuse(*args, **kwargs):
        raise huggingface_hub.errors.GatedRepoError("no", response=RESPONSE)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", lambda *args, **kwargs: info)
    monkeypatch.setattr(huggingface_hub.HfApi, "auth_check", refuse)
    fails("'x/y' is gated", tmp_path, dataset="x/y")


def test_no_network(tmp_path, monkeypatch):
    def unreachable(self, name, *, revision, timeout):
        assert timeout <= 10
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    fails(r"could not be reached for the dataset 'x/y' \(Name or .*folder as data.dataset, or its files .*data.files",
          tmp_path, dataset="x/y")  # fmt: skip


def test_a_hub_dataset_stays_at_the_commit_that_it_was_first_seen_at(tmp_path, monkeypatch):
    """The hub is replaced by a folder; all but the download is the real path."""
    folder = tmp_path / "of_the_hub"
    write("jsonl", folder / "train", TEXTS * 5)
    asked, opened = [], []

    def answer(self, name, *, revision, timeout):
        asked.append((name, revision))
        return type("Info", (), {"gated": False, "sha": f"commit {len(asked)}"})

    def open_hub(name, revision, subset, split):
        opened.append((name, revision, subset, split))
        return hub.open_folder(folder, None, split)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", answer)
    monkeypatch.setattr(hub, "open_hub", open_hub)
    config = Text(dataset="x/y", subset="en", seq_len=8, val_fraction=0.3, train_tokens=300, val_tokens=100)
    first = config.load(tmp_path / "cache")
    assert asked == [("x/y", None)]
    assert set(opened) == {("x/y", "commit 1", "en", "train")}
    assert 300 <= len(first.train) * 9 + 8 < 330
    opened.clear()
    again = config.load(tmp_path / "cache")  # no question and no download
    assert (len(asked), opened, again.fingerprint) == (1, [], first.fingerprint)
    other = open_dataset("x/y", "en", "train", "v2", "text", tmp_path / "cache")
    assert other.commit == "commit 2"
    assert other.fingerprint != first.fingerprint


def test_a_file_that_links_name_several_times_is_read_once(tmp_path):
    (tmp_path / "text/deeper").mkdir(parents=True)
    (tmp_path / "text/a.txt").write_text("one")
    (tmp_path / "text/deeper/b.txt").write_text("two")
    (tmp_path / "text/c.txt").symlink_to(tmp_path / "text/a.txt")
    (tmp_path / "text/d.txt").hardlink_to(tmp_path / "text/deeper/b.txt")
    (tmp_path / "text/loop").symlink_to(tmp_path / "text")
    found = find_files([str(tmp_path / "text/**/*.txt"), str(tmp_path / "text/c.txt")], lambda path: True, "")
    assert [path.read_text() for path in found] == ["one", "two"]
    assert found == [tmp_path / "text/a.txt", tmp_path / "text/d.txt"]
