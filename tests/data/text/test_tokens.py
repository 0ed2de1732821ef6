"""Tokenisation: limits, rows, threads, and what a full disk or a stopped process leaves."""

import errno
import json

import numpy as np
import pytest

from ablate.config.errors import DataError
from ablate.data import Text
from ablate.data.text import tokens as token_files
from ablate.data.text.sources import open_files
from ablate.data.text.tokenizers import Bytes, load_tokenizer
from ablate.data.text.tokens import load_tokens


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_tokenisation_leaves_nothing_and_begins_anew(tmp_path, monkeypatch, error):
    monkeypatch.setattr(token_files, "BATCH", 200)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"word {n}"}) + "\n" for n in range(120)))
    source = open_files([tmp_path / "a.jsonl"], "text", tmp_path / "cache")
    whole = load_tokens(tmp_path / "whole", source, Bytes())

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(token_files, "_write_header", fail)
        with pytest.raises((DataError, KeyboardInterrupt)) as raised:
            load_tokens(tmp_path / "cache", source, Bytes())
    if isinstance(error, OSError):
        assert raised.match(r"cache .*/tokens cannot be written: No space left .* set ABLATE_STORE")
    assert {path.suffix for path in (tmp_path / "cache" / "tokens").iterdir()} == {".lock"}
    again = load_tokens(tmp_path / "cache", source, Bytes())
    assert again.path.read_bytes() == whole.path.read_bytes()
    assert again.ends_path.read_bytes() == whole.ends_path.read_bytes()


def test_a_limit_stops_at_the_end_of_a_document(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "four"}\n' * 100)
    source = open_files([tmp_path / "a.jsonl"], "text", tmp_path)
    assert [load_tokens(tmp_path, source, Bytes(), None, limit).count for limit in (1, 5, 6, 5000)] == [5, 5, 10, 500]
    assert load_tokens(tmp_path, source, Bytes(), 3, 4).count == 6


def test_rows_are_cut_documents(tmp_path):
    texts = ["ab", "abcdefgh", "a", "abcd"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    tokens = load_tokens(tmp_path, open_files([tmp_path / "a.jsonl"], "text", tmp_path), Bytes(), 5)
    rows = np.split(np.load(tokens.path), tokens.read_ends()[:-1, 0])
    assert [bytes(row.tolist()) for row in rows] == [b"ab\0", b"abcde", b"a\0", b"abcd\0"]
    assert tokens.read_ends()[:, 1].tolist() == [3, 8, 10, 15]
    assert tokens.documents == 4


def test_threads_change_nothing(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "some words and more"}\n' * 300)
    found = []
    for batch in (100, 1 << 22):
        monkeypatch.setattr(token_files, "BATCH", batch)
        corpus = Text(files=str(tmp_path / "a.jsonl"), tokenizer="bpe-265", seq_len=8, val_fraction=0.5,
                      val_files=write_val(tmp_path)).load(tmp_path / str(batch))  # fmt: skip
        found.append(corpus.train.__getitems__(range(len(corpus.train)))[0])
    assert found[0].equal(found[1])


def write_val(tmp_path):
    (tmp_path / "v.txt").write_text("other words " * 20)
    return str(tmp_path / "v.txt")


def test_loaded_tokenizers_can_be_pickled(tmp_path):
    import pickle

    corpus = tmp_path / "a.jsonl"
    corpus.write_text('{"text": "some words and more"}\n' * 30)
    from ablate.data.text.bpe import train_bpe

    trained = train_bpe(270, open_files([corpus], "text", tmp_path), tmp_path)
    copy = pickle.loads(pickle.dumps(trained))  # noqa: S301 - our own
    assert (
        copy.encode(["some <|endoftext|> more"])[0].tolist() == trained.encode(["some <|endoftext|> more"])[0].tolist()
    )
    assert load_tokenizer("bytes").encode(["a"])[0].tolist() == [97]
