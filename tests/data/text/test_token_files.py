"""Files of tokens, written here byte by byte as their formats say."""

import copy
import re
import struct

import numpy as np
import pytest
import torch

from ablate.config.errors import ConfigError, DataError
from ablate.data import TokenFiles, data_kinds
from ablate.data.text import token_files
from ablate.experiment.tree import Experiment
from ablate.training.runs import fingerprint_inputs

VOCABULARY = 50_257


def draw(count, seed=0, most=VOCABULARY):
    return np.random.default_rng(seed).integers(0, most, count).tolist()


def header(magic, version, count):
    return struct.pack("<256i", magic, version, count, *[0] * 253)


def write_llm_c(path, tokens):
    path.write_bytes(header(20240520, 1, len(tokens)) + struct.pack(f"<{len(tokens)}H", *tokens))


def write_llama3(path, tokens):
    path.write_bytes(header(20240801, 7, len(tokens)) + struct.pack(f"<{len(tokens)}I", *tokens))


def write_uint16(path, tokens):
    path.write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))


def write_uint32(path, tokens):
    path.write_bytes(struct.pack(f"<{len(tokens)}I", *tokens))


def write_npy(path, tokens):
    np.save(path, np.array(tokens, ">i4"))


FORMATS = {
    "llm.c.bin": (write_llm_c, 50_257, "uint16"),
    "llama3.bin": (write_llama3, 128_256, "uint32"),
    "nanogpt.bin": (write_uint16, 50_304, "uint16"),
    "olmo.npy": (write_uint16, 50_304, "uint16"),
    "olmo2.npy": (write_uint32, 100_278, "uint32"),
    "real.npy": (write_npy, 50_304, "int32"),
}


def read(data):
    inputs, targets = data.__getitems__(range(len(data)))
    assert inputs.dtype == targets.dtype == torch.int64
    return torch.cat([inputs, targets[:, -1:]], 1).tolist()


def cut(tokens, size):
    return [tokens[at : at + size] for at in range(0, len(tokens) - size + 1, size)]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(name, tmp_path):
    write, vocabulary, kind = FORMATS[name]
    given = [draw(1000 + 7 * n, n) for n in range(3)]
    for number, tokens in enumerate(given):
        write(tmp_path / f"{number}_{name}", tokens)
    data = TokenFiles(
        files=(str(tmp_path / f"[01]_{name}"),), val_files=(str(tmp_path / f"2_{name}"),), seq_len=15,
        vocab_size=None if "ll" in name else vocabulary,
    )  # fmt: skip
    corpus = data.load(tmp_path / "cache")
    assert read(corpus.train) == cut(given[0], 16) + cut(given[1], 16)  # no window in two files
    assert read(corpus.val) == cut(given[2], 16)
    assert (corpus.classes, corpus.shape, corpus.bytes_per_token) == (vocabulary, (15,), None)
    assert corpus.description == (
        f"tokens: 2,007 of {vocabulary:,} kinds ({kind}) in 2 files, 124 training and 63 validation windows of 15"
    )
    assert read(copy.deepcopy(corpus.train)) == read(corpus.train)
    assert (
        read(data.model_copy(update={"train_tokens": 40, "val_tokens": 33}).load(tmp_path / "cache").train)
        == (cut(given[0], 16)[:2])
    )


def test_blocks_are_held_out(tmp_path):
    """Contiguous windows, with one window between them and the training windows, and all others trained on."""
    tokens = list(range(40_000))
    write_llm_c(tmp_path / "a.bin", tokens)
    data = TokenFiles(files=(str(tmp_path / "a.bin"),), seq_len=9)
    corpus = data.load(tmp_path / "cache")
    starts = [[row[0] // 10 for row in read(side)] for side in (corpus.train, corpus.val)]
    assert len(starts[1]) == pytest.approx(0.05 * 4000, rel=0.1)
    near = {number + step for number in starts[1] for step in (-1, 0, 1)}
    assert not near & set(starts[0])
    assert set(range(4000)) - set(starts[0]) <= near
    again = data.model_copy(update={"split_seed": 1}).load(tmp_path / "cache")
    assert read(again.val) != read(corpus.val)
    few = data.model_copy(update={"val_tokens": 35}).load(tmp_path / "cache")
    assert read(few.val) == read(corpus.val)[:3]


def test_a_copy_in_the_validation_set_is_refused(tmp_path):
    tokens = draw(4000)
    write_uint16(tmp_path / "train.bin", tokens)
    write_uint32(tmp_path / "val.bin", [*draw(1003, 5), *tokens[1111:2111]])
    data = TokenFiles(files=(str(tmp_path / "train.bin"),), val_files=(str(tmp_path / "val.bin"),), vocab_size=50_257)
    with pytest.raises(DataError, match=r"4\d\.\d % of data.val_files is also training data") as info:
        data.model_copy(update={"seq_len": 20}).load(tmp_path / "cache")
    shown = re.search(r"tokens ([\d ]+) ", str(info.value))[1]
    assert shown in " ".join(map(str, tokens))
    with pytest.raises(DataError, match="Both in files and in val_files"):
        data.model_copy(update={"val_files": data.files}).load(tmp_path / "cache")


def damage(content):
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "write", "settings", "message"),
    [
        ("a.bin", damage(header(20240520, 1, 5) + bytes(8)), {}, "tells 5 tokens and it has 4. Copy it again"),
        ("a.bin", damage(header(20240801, 1, 2) + bytes(8)), {}, "version 1 of the format of llm.c; accepted: 7"),
        ("a.bin", damage(header(20240522, 1, 2) + bytes(8)), {}, "has questions with several answers"),
        ("a.bin", damage(bytes(99)), {}, "too short to tell the type of its tokens: set data.dtype=uint16"),
        ("a.bin", damage(bytes(range(256)) * 4 + b"1"), {}, "has 1,025 bytes, which is no number of uint16 tokens"),
        ("a.npy", lambda path: np.save(path, np.ones((4, 4))), {}, r"float64 of shape \(4, 4\), and integers with one"),
        ("a.npy", lambda path: np.save(path, np.array([{}])), {}, "cannot be read"),
        ("a.npy", lambda path: np.save(path, np.arange(-1, 99)), {"vocab_size": 99}, "has the token -1 and"),
        ("a.npy", damage(b"\x93NUMPY"), {}, "cannot be read"),
        ("a.npy", lambda path: write_uint32(path, draw(99)), {"dtype": "uint16"}, "has tokens of 32 bits"),
        ("a.npy", lambda path: write_uint16(path, draw(100)), {"dtype": "uint32"}, "largest token is [0-9,]{10,}: set"),
        ("a.npy", lambda path: write_uint16(path, [500] * 99), {}, "largest token is 500: set data.tokenizer or"),
        ("a.npy", lambda path: write_uint16(path, [500] * 99), {"vocab_size": 500}, "token 500 and data.vocab_size"),
        ("a.bin", lambda path: write_uint16(path, [1, 3] * 50), {}, "largest token is 3: set"),  # no 32 bits
        ("a.bin", lambda path: write_llm_c(path, [1] * 9), {"seq_len": 9}, "0 training windows and 0 for validation"),
        ("a.bin", lambda path: write_llm_c(path, [1] * 99), {"val_tokens": 50, "seq_len": 4}, "val_tokens is 50. Give"),
        ("a.txt", damage(b"text"), {}, r"unknown suffix '.txt'. Accepted: .bin, .npy"),
        ("a.bin", lambda path: None, {}, "There is no file"),
    ],
)  # fmt: skip
def test_errors(name, write, settings, message, tmp_path):
    write(tmp_path / name)
    with pytest.raises(DataError, match=message):
        data_kinds.parse({"kind": "tokens", "files": str(tmp_path / name), **settings}).load(tmp_path / "cache")


def test_the_tokenizer_is_that_of_the_tokens(tmp_path, monkeypatch):
    write_uint16(tmp_path / "a.bin", draw(2000, most=256))
    data = TokenFiles(files=(str(tmp_path / "a.bin"),), seq_len=7)
    with pytest.raises(DataError, match=r"data\.tokenizer is not set"):
        data.load_tokenizer(tmp_path)
    experiment = Experiment.from_mapping({"data": {**data.model_dump(mode="json"), "vocab_size": 256}})
    corpus = experiment.data.load(tmp_path / "cache")
    assert [*fingerprint_inputs(experiment, corpus).values()] == [corpus.fingerprint]  # and no tokenizer's
    assert data.model_copy(update={"tokenizer": "bytes"}).load(tmp_path / "cache").classes == 256
    with pytest.raises(ConfigError, match="is empty; give the paths of files"):
        Experiment.from_mapping({"data": {"kind": "tokens", "files": []}})


def test_the_bounds_of_a_file_are_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "PIECE", 10)
    write_uint16(tmp_path / "a.bin", [*[5] * 71, 300, *[5] * 7])
    with pytest.raises(DataError, match="largest token is 300"):
        TokenFiles(files=(str(tmp_path / "a.bin"),)).load(tmp_path / "cache")


def test_a_short_file_has_the_type_that_is_set(tmp_path):
    """Of so few tokens the content does not tell that they have 32 bits."""
    write_uint16(tmp_path / "a.bin", [500, 0] * 20)
    assert token_files.read_header(tmp_path / "a.bin", "uint16").count == 40
