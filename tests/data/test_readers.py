"""Files of text by their first bytes, tables by plain types, and what is no file."""

import bz2
import gzip
import io
import lzma
import os
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet
import pytest
from PIL import Image

from ablate.config.errors import DataError
from ablate.data import ImageFiles, ImageFolder, Instructions, Text
from ablate.data.readers import read_lines
from ablate.data.text.sources import read_file
from ablate.data.text.tokenizers import load_tokenizer

LINES = [f"line {n} é\n" for n in range(2000)]
TEXT = "".join(LINES).encode()


def compress(content, codec):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESSED = {
    "gzip": gzip.compress(TEXT),
    "two members": gzip.compress(TEXT[:500]) + gzip.compress(TEXT[500:]),
    "bz2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
    "zstd": compress(TEXT, "zstd"),
    "lz4": compress(TEXT, "lz4"),
}


@pytest.mark.parametrize("content", [*COMPRESSED.values(), TEXT], ids=[*COMPRESSED, "none"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_compression_is_told_by_the_first_bytes(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    assert [line for _, line, _ in read_lines(tmp_path / name)] == LINES
    assert [piece.text for piece in read_file(tmp_path / name, "text")] == ["".join(LINES)]


@pytest.mark.parametrize("name", ["gzip", "bz2", "xz", "zstd", "lz4"])
def test_a_compressed_file_that_was_cut_is_refused(tmp_path, name):
    (tmp_path / "a.txt").write_bytes(COMPRESSED[name][:-20])
    with pytest.raises(DataError, match=r"a.txt cannot be read: "):
        list(read_file(tmp_path / "a.txt", "text"))


def test_a_text_that_begins_like_a_compressed_one(tmp_path):
    (tmp_path / "a.txt").write_text("BZhang wrote this.\n")
    assert [line for _, line, _ in read_lines(tmp_path / "a.txt")] == ["BZhang wrote this.\n"]


def make_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", TEXT)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (make_zip(), r"is not text in UTF-8: byte \d+ is zero"),
        (gzip.compress(make_zip()), r"is not text in UTF-8: byte \d+ is zero"),
        (gzip.compress(gzip.compress(TEXT)), "is not text in UTF-8: it is compressed twice"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a pointer of Git LFS"),
        (b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n", "is a PDF and not text"),
        (b"text\x00\x01\x02" * 9, "is not text in UTF-8: byte 5 is zero"),
        ("na\u00efve".encode("utf-16"), "is not text in UTF-8: byte 4 is zero. .*iconv -f"),
    ],
)
@pytest.mark.parametrize("data", [Text, Instructions])
def test_what_is_no_text_is_told_for_what_it_is(tmp_path, data, content, what):
    path = tmp_path / ("a.txt" if data is Text else "a.json")
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path.name} {what}"):
        data(files=str(path)).load(tmp_path / "cache")


TEXTS = [f"document {n} of {n * 7}" for n in range(30)]
LABELS = ["cat" if n % 3 else "dog" for n in range(30)]


def encode_dictionary(values, kind):
    unique = sorted(set(values))
    return pa.DictionaryArray.from_arrays(
        pa.array([unique.index(v) for v in values], pa.int32()), pa.array(unique, kind)
    )


def encode_runs(values, kind):
    return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, len(values) + 1), pa.int32()), pa.array(values, kind))


STRINGS = {
    "string_view": lambda values: pa.array(values, pa.string_view()),
    "large_string": lambda values: pa.array(values, pa.large_string()),
    "dictionary": lambda values: encode_dictionary(values, pa.string()),
    "dictionary of views": lambda values: encode_dictionary(values, pa.string_view()),
    "runs": lambda values: encode_runs(values, pa.string()),
    "runs of views": lambda values: encode_runs(values, pa.string_view()),
    "extension": lambda values: pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(values)),
}


def picture(number):
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


IMAGES = {
    "binary_view": lambda images: pa.array(images, pa.binary_view()),
    "large_binary": lambda images: pa.array(images, pa.large_binary()),
    "struct of views": lambda images: pa.array(
        [{"bytes": image, "path": None} for image in images],
        pa.struct([("bytes", pa.binary_view()), ("path", pa.string_view())]),
    ),
}


def write_table(folder, table, form):
    path = folder / ("a.parquet" if form == "parquet" else "a.arrow")
    if form == "parquet":
        pa.parquet.write_table(table, path)
        return path
    options = pa.ipc.IpcWriteOptions(compression="zstd" if form == "compressed" else None)
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    return path


FORMS = [(form, kind) for form in ("stream", "file", "compressed") for kind in STRINGS]
FORMS += [("parquet", kind) for kind in ("string_view", "large_string", "dictionary", "extension")]


@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_texts_and_rows_of_every_type_of_string(tmp_path, form, kind):
    build = STRINGS[kind]
    columns = {"text": build(TEXTS), "instruction": build(TEXTS), "output": build(LABELS)}
    path = write_table(tmp_path, pa.table(columns), form)
    assert [piece.text for piece in read_file(path, "text")] == TEXTS
    corpus = Instructions(files=str(path), seq_len=300, template="plain").load(tmp_path / "cache")
    assert len(corpus.train) + len(corpus.val) == 30


@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize(
    ("form", "kind"),
    [("stream", "string_view"), ("file", "dictionary of views"), ("compressed", "runs"), ("parquet", "string_view")],
)
def test_images_and_labels_of_every_type(tmp_path, form, kind, images):
    content = [picture(number) for number in range(30)]
    table = pa.table({"image": IMAGES[images](content), "label": STRINGS[kind](LABELS)})
    corpus = ImageFiles(files=str(write_table(tmp_path, table, form)), image_size=8).load(tmp_path / "cache")
    assert corpus.train.class_names == ("cat", "dog")
    source = corpus.train.source
    assert [source.read(row) for row in range(30)] == content
    assert [source.classes[label] for label in source.labels] == LABELS


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("a.txt", lambda path, cache: Text(files=str(path)).load(cache)),
        ("a.jsonl", lambda path, cache: Text(files=str(path.with_name("*.jsonl"))).load(cache)),
        ("a.json", lambda path, cache: Instructions(files=str(path)).load(cache)),
        ("a.arrow", lambda path, cache: ImageFiles(files=str(path)).load(cache)),
        ("root/a/a.png", lambda path, cache: ImageFolder(root=str(path.parents[1])).load(cache)),
        ("b.json", lambda path, cache: load_tokenizer(str(path))),
    ],
)
def test_what_cannot_be_read_twice_is_refused_and_does_not_hang(tmp_path, monkeypatch, name, load):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parents[1] / "b").mkdir(exist_ok=True)
    for number in range(3):
        (path.parents[1] / f"b/{number}.png").write_bytes(picture(number))
    os.mkfifo(path)
    with pytest.raises(DataError, match=f"{path.name} is no regular file, and data must be in files"):
        load(path, tmp_path / "cache")
