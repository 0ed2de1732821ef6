"""What is held out of text without a validation set: never windows among those that are trained on."""

import json

import numpy as np
import pytest

from ablate.config.errors import DataError
from ablate.data import Text, Topics
from ablate.data.text.sources import BlockSplit, open_files


@pytest.fixture
def novel(tmp_path):
    """A text of 60,000 bytes, 6 for each line, none twice."""
    file = tmp_path / "novel.txt"
    file.write_text("".join(f"{number:05d}\n" for number in range(10_000)))
    return file


def read_text(data):
    """The text of a dataset's windows, one after the other."""
    inputs, targets = data.__getitems__(range(len(data)))
    return "".join(map(chr, np.concatenate([inputs, targets[:, -1:]], 1).ravel().tolist()))


def read_lines(data):
    """The numbers of the whole lines in a dataset of `novel`."""
    return [int(line) for line in read_text(data).replace("\0", "\n").split("\n") if len(line) == 5]


def test_of_one_text_contiguous_blocks_are_held_out(novel, tmp_path):
    corpus = Text(files=str(novel), seq_len=11).load(tmp_path / "cache")
    train, val = read_lines(corpus.train), read_lines(corpus.val)
    assert abs(len(val) / 10_000 - 0.05) < 0.01
    breaks = np.flatnonzero(np.diff(val) > 2)  # a line may be cut by the border of two windows
    assert len(breaks) + 1 == 15  # blocks of 16 windows at least
    assert not set(train) & set(val)
    nearest = min(abs(np.array(train)[:, None] - np.array(val)[None]).ravel())
    assert nearest >= 2  # a window of 12 bytes lies between


def test_topics_are_held_out_in_blocks(tmp_path):
    corpus = Topics(seq_len=64).load(tmp_path)
    assert abs(len(corpus.val) / (len(corpus.train) + len(corpus.val)) - 0.05) < 0.01
    assert len(Topics(seq_len=32, val_fraction=0.0005).load(tmp_path).val) in range(1, 20)
    with pytest.raises(DataError, match="one window of seq_len=1000000 needs 1,000,001"):
        Topics(seq_len=1000000).load(tmp_path)


def test_documents_are_held_out_whole(tmp_path):
    """800 documents: by their hash, whatever is tokenised of them."""
    file = tmp_path / "a.jsonl"
    texts = [f"<{number:04d}>" + "x" * (number % 50) for number in range(800)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    corpus = Text(files=str(file), seq_len=1).load(tmp_path / "cache")
    sides = [{text for text in read_text(data).split("\0") if text[:1] == "<"} for data in (corpus.train, corpus.val)]
    whole = [side & set(texts) for side in sides]
    assert len(whole[0]) + len(whole[1]) >= 798  # but for the last of each, which may be cut
    assert 20 <= len(whole[1]) <= 70
    assert not whole[0] & whole[1]


@pytest.mark.parametrize("many", [False, True], ids=["one document", "many"])
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe-300"])
def test_val_tokens_are_as_many_as_are_validated_on(many, tokenizer, novel, tmp_path):
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"text": line * 10}) + "\n" for line in novel.read_text().split()))
    config = Text(files=str(file if many else novel), tokenizer=tokenizer, seq_len=9, val_tokens=500)
    assert len(config.load(tmp_path / "cache").val) == 50


@pytest.mark.parametrize("many", [False, True], ids=["one document", "many"])
def test_more_val_tokens_than_are_held_out(many, novel, tmp_path):
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps({"text": line}) + "\n" for line in novel.read_text().split()))
    match = r"data.val_tokens is 50,000, and \d,\d\d\d tokens are held out \(val_fraction=0.05\): set a larger"
    with pytest.raises(DataError, match=match):
        Text(files=str(file if many else novel), seq_len=9, val_tokens=50_000).load(tmp_path / "cache")


def test_the_sides_of_long_texts_do_not_depend_on_how_they_are_cut_for_reading(novel, tmp_path, monkeypatch):
    (tmp_path / "b.md").write_text("the end\n" * 500)
    whole = open_files([novel, tmp_path / "b.md"], "text", tmp_path)
    sides = [BlockSplit(whole, held_out, 0.2, 0, 12) for held_out in (False, True)]
    before = ["".join(piece.text for piece in side.read()) for side in sides]
    monkeypatch.setattr("ablate.data.text.sources.PIECE", 9000)
    assert ["".join(piece.text for piece in side.read()) for side in sides] == before
    assert len(list(sides[1].read())) > 16
