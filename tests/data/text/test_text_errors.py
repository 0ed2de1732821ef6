"""What is said about text that cannot be read: the file, the line, and what to do."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from ablate.config.errors import DataError
from ablate.data import Text


def fails(tmp_path, match, name="a.txt", content=None, **fields):
    """Loading a file `name` with `content` raises a DataError that names the file and matches `match`."""
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=match) as caught:
        Text(files=str(tmp_path / name), seq_len=4, **fields).load(tmp_path / "cache")
    assert re.search(re.escape(name), str(caught.value))
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.jsonl"])
def test_encoding(tmp_path, name):
    good = b'{"text": "fine"}\n' * 2
    message = fails(
        tmp_path, f"{name}:3: byte 0xe9 at position 13 .* not UTF-8", name, good + b'{"text": "\xc3\xa4\xe9"}'
    )
    assert "iconv" in message


def test_utf16(tmp_path):
    fails(
        tmp_path,
        r"a.txt is not text in UTF-8: byte 4 is zero. .*iconv -f utf-16 ",
        content="hi".encode("utf-16"),
    )


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ('{"text": "open', "a.jsonl:3: not a line of JSON: Invalid control character .*at column 15"),
        ("[" * 100_000, "a.jsonl:3: not a line of JSON"),
        ('["text"]', r'a.jsonl:3: expected an object such as {"text": ...}, got a list'),
        ('{"txt": "a", "id": 3}', r"a.jsonl:3: no column 'text'. Columns: 'txt', 'id'. Did you mean txt\?"),
        ("{}", "a.jsonl:3: no column 'text'. Columns: none."),
        ('{"text": 3.5}', "a.jsonl:3: 'text' must be a string, but is a number"),
        ('{"text": null}', "a.jsonl:3: 'text' must be a string, but is null"),
        ('{"text": ["a"]}', "a.jsonl:3: 'text' must be a string, but is a list"),
        ('{"text": "\\ud83d"}', "a.jsonl:3: the text has a lone surrogate"),
    ],
)
def test_json_lines(tmp_path, line, match):
    fails(tmp_path, match, "a.jsonl", '{"text": "fine"}\n\n' + line + "\n")


def table(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")


def test_parquet(tmp_path):
    table(tmp_path, content=["a"], id=[1])
    fails(tmp_path, "a.parquet: no column 'text'. Columns: 'content', 'id'", "a.parquet")
    fails(tmp_path, "a.parquet: the column 'id' must contain strings, but contains int64", "a.parquet", column="id")
    table(tmp_path, text=["a", None])
    fails(tmp_path, "a.parquet: row 2: 'text' must be a string, but is null", "a.parquet")
    raw = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"ab\xff"))
    table(tmp_path, text=raw)
    fails(tmp_path, "a.parquet: row 2: byte 0xff of 'text' is not UTF-8", "a.parquet")
    fails(tmp_path, "a.parquet is not a readable parquet file", "a.parquet", b"PAR1 and no more")


def test_missing(tmp_path, monkeypatch):
    (tmp_path / "train.txt").touch()
    fails(tmp_path, r"no file /.*/trian.txt. Did you mean train.txt\?", "trian.txt")
    fails(tmp_path, "The folder /.*/nowhere does not exist", "nowhere/a.txt")
    fails(tmp_path, r"No file matches /.*/\*\*/\*.jsonl", "**/*.jsonl")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "x.txt"))):
        Text(files="x.txt").load(tmp_path)


def test_folder(tmp_path):
    (tmp_path / "corpus").mkdir()
    fails(tmp_path, r"/corpus is a folder. .* glob: /.*/corpus/\*\*/\*.txt", "corpus")


def test_suffix(tmp_path):
    accepted = re.escape(
        "Accepted: .txt, .md, .jsonl, .ndjson, .json-lines, .parquet, .arrow; all but the last two also"
    )
    for name in ("a.csv", "a.parquet.gz", "a.gz"):
        fails(tmp_path, f"{name} has the unknown suffix '.{name.rpartition('.')[2]}'. {accepted}", name, "x")


def test_unreadable(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x" * 100)
    open_path = type(tmp_path).open

    # Permissions do not stop root, who may be running the tests.
    def refuse(path, *args, **kwargs):
        if path.name == "a.txt":
            raise PermissionError(13, "Permission denied", str(path))
        return open_path(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "open", refuse)
        fails(tmp_path, "a.txt cannot be read: Permission denied")
        patch.setattr("ablate.data.text.sources.fingerprint_files", lambda *_: "known")
        fails(tmp_path, "a.txt cannot be read: Permission denied")
    monkeypatch.setattr("ablate.data.text.sources.find_files", lambda names, *_: [tmp_path / "gone.txt" for _ in names])
    with pytest.raises(DataError, match=r"gone.txt cannot be read: No such file"):
        Text(files="gone.txt").load(tmp_path)


@pytest.mark.parametrize(("name", "content"), [("a.txt", ""), ("a.jsonl", "\n\n"), ("b.jsonl", '{"text": ""}\n')])
def test_empty(tmp_path, name, content):
    fails(tmp_path, f"There is no text in .*{name}", name, content)


def test_too_short(tmp_path):
    fails(tmp_path, r"no text of .* is left to train on \(val_fraction=0.05\)", content="12345678")


def test_too_short_validation(tmp_path):
    for name, size in {"a.txt": 4, "v.txt": 3}.items():
        (tmp_path / name).write_text("x" * size)
    for files, match in {("a.txt", "v.txt"): "validation set has 4", ("v.txt", "a.txt"): "training set has 4"}.items():
        train, val = (str(tmp_path / name) for name in files)
        with pytest.raises(DataError, match=f"The {match} tokens, one window of seq_len=4 needs 5"):
            Text(files=train, val_files=val, seq_len=4).load(tmp_path)


def test_file_changes_while_it_is_read(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x" * 100)
    from ablate.data.text import sources

    read = sources.read_file

    def change(path, column):
        yield from read(path, column)
        (tmp_path / "a.txt").write_text("y" * 101)

    monkeypatch.setattr(sources, "read_file", change)
    fails(tmp_path, "changed while it was read: one of .*a.txt")


def test_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 100)
    (tmp_path / "cache").touch()
    with pytest.raises(DataError, match=r"The cache .*/cache/fingerprints cannot be written: "):
        Text(files=str(tmp_path / "a.txt"), seq_len=4).load(tmp_path / "cache")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({}, "needs either files or dataset, and none is given"),
        ({"files": "a", "dataset": "b"}, "needs either files or dataset, and both are given"),
        (
            {"files": "a", "subset": "en", "revision": "main"},
            ("subset, revision: only valid with `dataset`, which is not set"),
        ),
        ({"dataset": "a", "val_split": "x", "val_files": "b"}, "both val_split and val_files are given"),
        ({"dataset": "a", "val_split": "train"}, "train_split and val_split are both 'train'"),
        ({"files": "a", "val_sets": {"a/b": {"files": "c"}}}, "the name of a validation set .* 'a/b' does not"),
        ({"files": "a", "val_sets": {"b": {}}}, "needs either files or dataset, and none is given"),
    ],
)
def test_fields_that_do_not_fit(fields, match):
    with pytest.raises(ValidationError, match=match):
        Text(**fields)


def test_validation_on_what_is_trained_on(tmp_path):
    (tmp_path / "a.txt").write_text("x" * 100)
    name = str(tmp_path / "a.txt")
    fails(tmp_path, r"Both in files and in val_sets.same: .*a.txt", val_sets={"same": {"files": name}})
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "data" / "train" / "a.jsonl").write_text('{"text": "some text"}\n' * 9 + '{"text": "other"}')
    with pytest.raises(
        DataError, match=r"val_sets.same is the training split: the dataset .* \(train\). Choose another"
    ):
        Text(
            dataset=str(tmp_path / "data"),
            val_files=name,
            seq_len=4,
            val_sets={"same": {"dataset": str(tmp_path / "data"), "split": "train"}},
        ).load(tmp_path / "cache")


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream], ids=["file", "stream"])
def test_an_arrow_file_that_points_outside_of_itself(tmp_path, new):
    """pyarrow ends the process where such a text is used."""
    table = pa.table({"text": ["abc"] * 7})
    with new(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    offsets = np.arange(0, 24, 3, dtype=np.int32)
    damaged = np.where(offsets == 9, 2**30, offsets).astype(np.int32)
    content = (tmp_path / "a.arrow").read_bytes().replace(offsets.tobytes(), damaged.tobytes())
    fails(tmp_path, "a.arrow is not a readable arrow file: ", "a.arrow", content)
