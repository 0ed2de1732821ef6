"""Text from files to windows: content by hand, fingerprints, the cache."""

import copy
import hashlib
import json
import multiprocessing
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
import torch
from pydantic import ValidationError

from ablate.cli.list import list_choices
from ablate.config.errors import DataError
from ablate.data import PRESETS, Text, Topics, data_kinds
from ablate.data.text import tokens as token_files
from ablate.data.text.sources import Piece, open_files, read_file
from ablate.data.text.tokenizers import load_tokenizer
from ablate.data.text.tokens import choose_dtype, load_tokens
from ablate.experiment.tree import Experiment


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.fixture
def build(tmp_path):
    """Text with a validation set of its own, so that all of its files is trained on."""
    val = write(tmp_path / "held" / "val.md", "0123456789" * 20)
    return lambda files, **fields: Text(files=files, val_files=val, **fields)


def stream_of(corpus, seq_len):
    """The token stream that is trained on, up to the last window."""
    inputs, targets = corpus.train.__getitems__(range(len(corpus.train)))
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (len(corpus.train), seq_len)
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    return torch.cat([inputs, targets[:, -1:]], 1).flatten().tolist()


def test_topics(cache):
    from pydoc_data.topics import topics

    corpus = Topics(seq_len=64).load(cache)
    raw = b"".join(topics[name].encode() + b"\0" for name in sorted(topics))
    assert bytes(stream_of(corpus, 64))[:1000] == raw[:1000]
    assert corpus.fingerprint == hashlib.sha256(raw).hexdigest()
    assert (corpus.classes, corpus.shape, corpus.bytes_per_token) == (256, (64,), 1.0)
    assert corpus.description == (
        f"topics: {len(raw):,} bytes, {len(corpus.train):,} training and {len(corpus.val):,} validation windows of 64"
    )
    assert abs(len(corpus.val) / (len(raw) // 65) - 0.05) < 0.02
    assert not cache.exists()


def test_windows_against_the_raw_files(tmp_path, cache, build):
    one = write(tmp_path / "1.txt", "Grüße\nfrom\r\nhere" * 5)
    two = write(tmp_path / "2.md", b"\xef\xbb\xbfa file with a byte order mark")
    lines = ['{"text": "first\\n", "id": 1}', "", '{"id": 2, "text": ""}', '{"text": "\\u00e9"}']
    three = write(tmp_path / "3.jsonl", "\n".join(lines))
    corpus = build((one, two, three), seq_len=6).load(cache)
    raw = ("Grüße\nfrom\r\nhere" * 5 + "\0a file with a byte order mark\0first\n\0é\0").encode()
    assert bytes(stream_of(corpus, 6)) == raw[: len(raw) // 7 * 7]
    assert corpus.description.startswith(f"text: {len(raw)} tokens (bytes) of 4 documents to train on, ")
    inputs, target = corpus.train[3]
    assert bytes(inputs.tolist()) == raw[21:27]
    assert bytes(target.tolist()) == raw[22:28]


def test_parquet(tmp_path, cache, build):
    texts = ["eins", "", "zwei", "drei" * 20]
    columns = {"body": pa.array(texts).dictionary_encode(), "large": pa.array(texts, pa.large_string())}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    for column in columns:
        corpus = build(str(tmp_path / "a.parquet"), column=column, seq_len=8).load(cache)
        raw = ("eins\0zwei\0" + "drei" * 20 + "\0").encode()
        assert bytes(stream_of(corpus, 8)) == raw[: len(raw) // 9 * 9]


def test_files(tmp_path, cache, build, monkeypatch):
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "odd[1].txt"):
        write(tmp_path / name, name * 20)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def raw(files):
        stream = bytes(stream_of(build(files, seq_len=1).load(cache), 1))
        return [part.decode().split(".txt")[0] for part in stream.split(b"\0") if len(part) > 1]

    assert raw("*.txt") == ["a", "b", "odd[1]"]
    assert raw(("b.txt", "*.txt")) == ["b", "a", "odd[1]"]
    assert sorted(raw("**/*.txt")) == ["a", "b", "deep/er/c", "odd[1]"]
    assert raw("~/deep/**/*.txt") == ["deep/er/c"]
    assert raw("odd[1].txt") == ["odd[1]"]
    assert data_kinds.parse({"kind": "text", "files": "a.txt"}).files == ("a.txt",)
    with pytest.raises(ValidationError, match="needs either files or dataset, and none is given"):
        Text(files=())


def test_long_text_is_cut_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("ablate.data.text.sources.PIECE", 10)
    path = tmp_path / "a.txt"
    write(path, "12345\n" * 3 + "äö\n")
    pieces = list(read_file(path, "text"))
    assert pieces == [Piece("12345\n12345\n", 12, False), Piece("12345\näö\n", 11, True)]


def test_split_depends_on_its_own_seed_only(tmp_path, cache):
    file = write(tmp_path / "a.txt", "".join(f"{number:05d}\n" for number in range(2000)))
    first, again, other = (Text(files=file, seq_len=8, split_seed=seed).load(cache) for seed in (0, 0, 1))
    held = [corpus.val.__getitems__(range(len(corpus.val)))[0].tolist() for corpus in (first, again, other)]
    assert held[0] == held[1] != held[2]


def test_val_files(tmp_path, cache):
    train = write(tmp_path / "train.txt", "x" * 99)
    val = write(tmp_path / "val.txt", "y" * 49)
    corpus = Text(files=train, val_files=val, seq_len=9).load(cache)
    assert set(corpus.train.__getitems__(range(len(corpus.train)))[0].unique().tolist()) == {ord("x")}
    assert set(corpus.val.__getitems__(range(len(corpus.val)))[0].unique().tolist()) == {ord("y")}
    assert (len(corpus.train), len(corpus.val)) == (10, 5)
    assert corpus.fingerprint != Text(files=train, seq_len=9).load(cache).fingerprint
    with pytest.raises(DataError, match=r"Both in files and in val_files: .*val.txt"):
        Text(files=str(tmp_path / "*.txt"), val_files=val).load(cache)


def test_fingerprint_is_of_the_contents(tmp_path, cache):
    def fingerprint(*names, **fields):
        return Text(files=[str(tmp_path / name) for name in names], seq_len=2, **fields).load(cache).fingerprint

    for name, text in {"a.txt": "first", "b.txt": "second", "copy/c.txt": "first", "d.txt": "firstsecond"}.items():
        write(tmp_path / name, text)
    assert fingerprint("a.txt", "b.txt") == fingerprint("copy/c.txt", "b.txt")
    assert fingerprint("a.txt", "b.txt", split_seed=4, val_fraction=0.5) == fingerprint("a.txt", "b.txt")
    different = [fingerprint("a.txt", "b.txt"), fingerprint("b.txt", "a.txt"), fingerprint("d.txt")]
    write(tmp_path / "a.txt", "fIrst")
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    different.append(fingerprint("a.txt", "b.txt"))
    assert len(set(different)) == 4


def test_unchanged_files_are_not_read_again(tmp_path, cache, build, monkeypatch):
    config = build(write(tmp_path / "a.txt", "text" * 50), seq_len=4)
    first = config.load(cache)
    monkeypatch.setattr("ablate.data.files.hash_file", None)
    monkeypatch.setattr("ablate.data.text.tokens.hash_file", None)
    monkeypatch.setattr("ablate.data.text.sources.read_file", None)
    assert config.load(cache).fingerprint == first.fingerprint
    assert build(config.files, seq_len=7).load(cache).train[0][0].shape == (7,)


def test_column_and_format_have_tokens_of_their_own(tmp_path, cache, build):
    file = write(tmp_path / "a.jsonl", '{"text": "aaaaaaaaaa", "body": "bbbbbbbbbb"}\n')
    copy = write(tmp_path / "a.txt", '{"text": "aaaaaaaaaa", "body": "bbbbbbbbbb"}\n')
    corpora = [
        build(file, seq_len=1),
        build(file, seq_len=1, column="body"),
        build(copy, seq_len=1),
    ]
    streams = [bytes(stream_of(corpus.load(cache), 1)) for corpus in corpora]
    assert streams[0] == b"a" * 10
    assert streams[1] == b"b" * 10
    assert streams[2].startswith(b'{"text')


@pytest.fixture
def words(tmp_path):
    """A tokenizer of words, one id each, and an end of text."""
    vocabulary = {word: index for index, word in enumerate(["[UNK]", "cat", "mouse", "elephant", "</s>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def test_tokenizer_end_of_text_and_bytes_per_token(tmp_path, cache, words):
    train = write(tmp_path / "a.jsonl", '{"text": "cat mouse"}\n{"text": "elephant"}\n' * 10)
    val = write(tmp_path / "v.txt", "mouse " * 29)
    corpus = Text(files=train, val_files=val, tokenizer=words, seq_len=4).load(cache)
    inputs, targets = corpus.train.__getitems__([0, 1])
    assert torch.cat([inputs, targets[:, -1:]], 1).tolist() == [[1, 2, 4, 3, 4]] * 2
    assert corpus.classes == 5
    # 29 words of six bytes, and one for the end; the six windows of five tokens have 24 targets.
    assert len(corpus.val) == 6
    assert corpus.bytes_per_token == pytest.approx((29 * 6 + 1) / 30)


def test_bytes_per_token_is_of_the_validation_windows(tmp_path, cache, words):
    documents = ["cat " * 9, "elephant " * 9] * 20
    file = write(tmp_path / "a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in documents))
    corpus = Text(files=file, tokenizer=words, seq_len=9, val_fraction=0.2).load(cache)
    # Each document is a window: nine words and the end. The first word is not a target.
    exact = np.mean([(37, 82)[number % 2] * 0.9 / 9 for number in corpus.val.numbers])
    assert corpus.bytes_per_token == pytest.approx(exact)
    assert 0 < np.mean(corpus.val.numbers % 2) < 1


def test_bytes_of_a_stream(tmp_path, cache, words):
    path = tmp_path / "a.jsonl"
    write(path, '{"text": "cat mouse"}\n' * 1000)
    tokens = load_tokens(cache, open_files([path], "text", cache), load_tokenizer(words))
    assert (tokens.count, tokens.documents) == (3000, 1000)
    assert tokens.read_ends()[[0, -1]].tolist() == [[3, 10], [3000, 10000]]
    assert np.allclose(tokens.count_bytes(np.array([0, 1.5, 6, 3000])), [0, 5, 20, 10000])


@pytest.mark.parametrize(("size", "dtype"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_narrowest_type(size, dtype):
    assert choose_dtype(size) == dtype


def damage_a_token(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


DAMAGES = {
    "token": ("npy", damage_a_token),
    "size": ("npy", cut),
    "empty": ("npy", lambda path: path.write_bytes(b"")),
    "missing": ("npy", lambda path: path.unlink()),
    "note": ("json", cut),
    "note missing": ("json", lambda path: path.unlink()),
    "note of another file": ("json", lambda path: path.write_text('{"count": 3, "documents": 1, "ends": 1}')),
    "end": ("ends", damage_a_token),
    "ends missing": ("ends", lambda path: path.unlink()),
    "note of nothing": ("json", lambda path: path.write_text("[]")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cache_is_rebuilt(tmp_path, cache, build, damage):
    config = build(write(tmp_path / "a.txt", "text" * 50), seq_len=4)
    expected = stream_of(config.load(cache), 4)
    suffix, harm = DAMAGES[damage]
    for path in (cache / "tokens").glob(f"*.{suffix}"):
        harm(path)
    assert stream_of(config.load(cache), 4) == expected
    assert not list((cache / "tokens").glob("*.tmp"))


def test_touched_cache_is_compared_once(tmp_path, cache, build, monkeypatch):
    config = build(write(tmp_path / "a.txt", "text" * 50), seq_len=4)
    config.load(cache)
    for path in (cache / "tokens").glob("*.npy"):
        os.utime(path, ns=(1, 1))
    monkeypatch.setattr(token_files, "_tokenize", None)
    config.load(cache)
    monkeypatch.setattr(token_files, "hash_file", None)
    config.load(cache)


def test_damaged_fingerprint_is_computed_again(tmp_path, cache):
    config = Text(files=write(tmp_path / "a.txt", "text" * 50), seq_len=4)
    expected = config.load(cache).fingerprint
    (note,) = (cache / "fingerprints").glob("*.json")
    note.write_text('{"no": "list"')
    assert config.load(cache).fingerprint == expected


def test_nothing_is_left_where_building_fails(tmp_path, cache):
    file = Path(write(tmp_path / "a.jsonl", '{"text": "fine"}\n{"text": 3}\n'))
    for _ in range(2):
        with pytest.raises(DataError, match=r"a.jsonl:2"):
            load_tokens(cache, open_files([file], "text", cache), load_tokenizer("bytes"))
    assert {path.suffix for path in (cache / "tokens").iterdir()} == {".lock"}


def load_and_count(files, cache, barrier, results):
    built = []
    build = token_files._tokenize
    token_files._tokenize = lambda *args: built.append(1) or build(*args)
    barrier.wait()
    tokens = load_tokens(cache, open_files(files, "text", cache), load_tokenizer("bytes"))
    results.put((len(built), np.load(tokens.path).tolist()))


def test_two_processes_at_once_build_once(tmp_path, cache):
    files = [Path(write(tmp_path / "a.txt", "some text\n" * 20000))]
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=load_and_count, args=(files, cache, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    first, second = results.get(timeout=60), results.get(timeout=60)
    for process in processes:
        process.join()
    assert first[0] + second[0] == 1
    assert first[1:] == second[1:]


def test_datasets_can_be_pickled(tmp_path, cache):
    train = Text(files=write(tmp_path / "a.txt", "text" * 5000), seq_len=4).load(cache).train
    before = train[3][0].tolist()
    assert len(pickle.dumps(train)) < 8 * len(train) + 1000
    assert copy.deepcopy(train)[3][0].tolist() == before
    with pytest.raises(IndexError):
        train[len(train)]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_whole_and_give_way(name):
    data = Experiment.from_mapping({"data": name}).data
    assert data.val_tokens >= 10_000_000
    assert data.dataset.count("/") == 1
    changed = Experiment.from_mapping({"data": name, "data.train_tokens": 5, "data.seq_len": 9}).data
    assert (changed.train_tokens, changed.seq_len, changed.dataset) == (5, 9, data.dataset)
    assert Experiment.from_mapping(Experiment.from_mapping({"data": name}).to_tree()).data == data


def test_c4_is_that_of_the_papers():
    data = Experiment.from_mapping({"model": "llama-71m", "data": "c4"}).data
    assert (data.dataset, data.subset, data.val_split) == ("allenai/c4", "en", "validation")
    assert (data.tokenizer, data.layout, data.seq_len) == ("t5-base", "documents", 256)


def test_they_are_listed():
    rows = {row["data"]: row for row in list_choices("data")}
    assert set(PRESETS) <= set(rows)
    assert "dataset=allenai/c4" in rows["c4"]["what it is"]
    assert rows["c4"]["task"] == "language modeling"


CARD = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {0}/*/*\n{1}---\n"
SUBSET = "- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n"
DCLM = (
    "filtered/OH_eli5_vs_rw_v2_bigram_200k_train/fasttext_openhermes_reddit_eli5_vs_rw_v2_bigram_200k_train/"
    "processed_data/global-shard_01_of_10/local-shard_0_of_10"
)
WEB = {"id": "<urn:uuid:1>", "dump": "CC-MAIN-2013-20", "url": "http://a.org", "language_score": 0.9, "token_count": 5}
LAYOUTS = {
    "fineweb": (["sample/10BT/000_00000.parquet", "sample/10BT/001_00000.parquet"], WEB, CARD.format("data", SUBSET)),
    "openwebtext": (["plain_text/train-00000-of-00080.parquet", "plain_text/train-00001-of-00080.parquet"], {}, ""),
    "dclm": (
        [f"{DCLM}/shard_0000000{n}_processed.parquet" for n in (0, 1)],
        {"bff_contained_ngram_count_before_dedupe": 0, "language_id_whole_page_fasttext": 0.9, "url": "http://b.org"},
        "",
    ),
    "climbmix": (["shard_00000.parquet", "shard_06542.parquet"], {}, ""),
}
"""The files of a dataset on the hub, the columns beside the text, and its README.md."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_copy_of_a_dataset_is_read_by_its_preset(name, tmp_path, cache):
    files, columns, card = LAYOUTS[name]
    texts = [[f"{file}: document {number} of this file." for number in range(60)] for file in files]
    for file, part in zip(files, texts, strict=True):
        (tmp_path / "copy" / file).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([{"text": text, **columns} for text in part]), tmp_path / "copy" / file)
    if card:
        write(tmp_path / "copy" / "README.md", card)
        write(tmp_path / "copy" / "data" / "CC-MAIN-2013-20" / "other.parquet", b"no part of the subset")
    settings = {"dataset": str(tmp_path / "copy"), "tokenizer": "bytes", "seq_len": 7, "val_tokens": None}
    corpus = Experiment.from_mapping({"data": name}, {f"data.{k}": v for k, v in settings.items()}).data.load(cache)
    streams = [bytes(stream_of(side, 7)) for side in (corpus, replace(corpus, train=corpus.val))]
    given = [text.encode() for part in texts for text in part]
    read = [document for stream in streams for document in stream.split(b"\0")[:-1]]  # the last is cut by the window
    assert sorted(read + [text for text in given if text not in read]) == sorted(given)
    assert len(given) - len(read) <= 2


def test_a_copy_of_one_subset_is_read_by_its_files(tmp_path, cache):
    """Its README.md names the files of another subset first, which `datasets` asks for."""
    write(tmp_path / "README.md", CARD.format("data", SUBSET))
    file = tmp_path / "sample" / "10BT" / "000_00000.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([{"text": f"document {number}."} for number in range(60)]), file)
    settings = {"data.tokenizer": "bytes", "data.seq_len": 7, "data.val_tokens": None}
    with pytest.raises(DataError, match=r"If it is a part of one, give its files as data\.files"):
        Experiment.from_mapping({"data": "fineweb", "data.dataset": str(tmp_path), **settings}).data.load(cache)
    assert len(Experiment.from_mapping({"data": "fineweb", "data.files": [str(file)], **settings}).data.load(cache).val)


@pytest.mark.parametrize("layout", ["packed", "documents"])
def test_the_size_of_the_prepared_tokens_is_known_beforehand(build, cache, tmp_path, layout):
    file = write(tmp_path / "rows.jsonl", (json.dumps({"text": "abcdefgh" * 8}) + "\n") * 200)
    data = build(file, seq_len=64, layout=layout, train_tokens=65 * 100, val_tokens=200)
    rows = 16 * 6700 / 65 if layout == "documents" else 0
    assert data.count_prepared_bytes(256) == pytest.approx(65 * 100 + 200 + rows, abs=1)
    data.load(cache)
    stored = sum(path.stat().st_size for path in (cache / "tokens").iterdir() if path.suffix == ".npy")
    assert stored - 2 * token_files.HEADER == pytest.approx(
        65 * 100 + 200, abs=135
    )  # one row of 65 in the validation file
    assert build(file).count_prepared_bytes(256) is None
    assert build(file, train_tokens=100, val_tokens=50, tokenizer="gpt2").count_prepared_bytes(8) == 300
