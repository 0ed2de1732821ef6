"""A tokenisation that is killed, or finds the disk full, goes on where it was and gives the same bytes."""

import errno
import json
import multiprocessing
import os
import signal

import numpy as np
import pytest

from ablate.config.errors import DataError
from ablate.data import Text
from ablate.data.text import token_writer
from ablate.data.text.sources import open_files
from ablate.data.text.token_cache import load_tokens
from ablate.data.text.tokenizers import Bytes, load_tokenizer


@pytest.fixture
def often(monkeypatch):
    """Every batch of a few documents is made safe."""
    monkeypatch.setattr(token_writer, "BATCH", 200)
    monkeypatch.setattr(token_writer, "COMMIT_SECONDS", 0.0)


@pytest.fixture(params=["jsonl", "txt"])
def source(request, tmp_path, monkeypatch):
    """Documents of many lengths, or two that come in many pieces."""
    monkeypatch.setattr("ablate.data.text.documents.PIECE", 50)
    if request.param == "jsonl":
        texts = ["word " * (number % 13) + str(number) for number in range(120)]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        for name in "ab":
            (tmp_path / f"{name}.txt").write_text("".join(f"{name} line {n}\n" for n in range(200)))
    return open_files(sorted(tmp_path.glob(f"*.{request.param}")), "text", tmp_path / "cache")


def content(tokens):
    return tokens.count, tokens.documents, tokens.path.read_bytes(), tokens.ends_path.read_bytes()


class Counting(Bytes):
    """Bytes that counts what it encodes, and does something in batch number `at`."""

    def __init__(self, at=None, do=None):
        super().__init__()
        self.at, self.do, self.batches = at, do, 0

    def encode(self, texts):
        self.batches += 1
        if self.batches == self.at:
            self.do()
        return super().encode(texts)


def tokenize_and_die(cache, source, row, at):
    load_tokens(cache, source, Counting(at, lambda: os.kill(os.getpid(), signal.SIGKILL)), row)


@pytest.mark.parametrize("row", [None, 30])
@pytest.mark.parametrize("at", [2, 7])
def test_a_killed_process_loses_little_and_changes_nothing(tmp_path, often, source, row, at):
    if row is not None and source.name.endswith("b.txt"):
        at = 1  # two documents make one batch of beginnings
    whole_run = Counting()
    whole = content(load_tokens(tmp_path / "whole", source, whole_run, row))
    cache = tmp_path / "killed"
    process = multiprocessing.get_context("fork").Process(target=tokenize_and_die, args=(cache, source, row, at))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert not list((cache / "tokens").glob("*.npy"))
    rest = Counting()
    assert content(load_tokens(cache, source, rest, row)) == whole
    assert rest.batches == whole_run.batches - at + 1
    assert {path.suffix for path in (cache / "tokens").iterdir()} == {".lock", ".npy", ".ends", ".json"}


def test_what_was_written_behind_the_last_safe_place_is_not_used(tmp_path, often, source):
    whole = content(load_tokens(tmp_path / "whole", source, Counting()))
    cache = tmp_path / "stopped"

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_tokens(cache, source, Counting(6, stop))
    (part,) = (cache / "tokens").glob("*.npy.part")
    with part.open("ab") as file:
        file.write(b"rubbish")
    assert content(load_tokens(cache, source, Counting())) == whole


@pytest.mark.parametrize("harm", ["shorter", "journal", "missing"])
def test_a_damaged_part_is_begun_anew(tmp_path, often, source, harm):
    whole = content(load_tokens(tmp_path / "whole", source, Counting()))
    cache = tmp_path / "stopped"

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_tokens(cache, source, Counting(6, stop))
    (part,), (journal,) = (cache / "tokens").glob("*.ends.part"), (cache / "tokens").glob("*.journal")
    if harm == "shorter":
        os.truncate(part, 140)
    elif harm == "journal":
        journal.write_text('{"counts": {"tokens": 5')
    else:
        part.unlink()
    again = Counting()
    assert content(load_tokens(cache, source, again)) == whole


def test_a_full_disk(tmp_path, often, source, monkeypatch):
    whole = content(load_tokens(tmp_path / "whole", source, Counting()))
    cache = tmp_path / "full"
    syncs = []
    sync = token_writer._Writer.sync

    def full(writer):
        syncs.append(1)
        if len(syncs) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(writer)

    with monkeypatch.context() as patch:
        patch.setattr(token_writer._Writer, "sync", full)
        for _ in range(2):
            with pytest.raises(
                DataError, match=r"cache .*/tokens cannot be written: No space left .* set ABLATE_STORE"
            ):
                load_tokens(cache, source, Counting())
    assert not list((cache / "tokens").glob("*.npy"))
    rest = Counting()
    assert content(load_tokens(cache, source, rest)) == whole
    assert rest.batches > 1


def test_no_room_for_the_journal(tmp_path, often, source, monkeypatch):
    """Whatever is written when the disk is full: what is there before stays good."""
    whole = content(load_tokens(tmp_path / "whole", source, Counting()))
    cache, replace, notes = tmp_path / "full", token_writer.write_whole, []

    def full(path, text):
        notes.append(path)
        if len(notes) > 2:
            path.with_suffix(".tmp").write_bytes(text[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(token_writer, "write_whole", full)
        with pytest.raises(DataError, match="No space left"):
            load_tokens(cache, source, Counting())
    assert content(load_tokens(cache, source, Counting())) == whole


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
        monkeypatch.setattr(token_writer, "BATCH", batch)
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
