"""A byte-level BPE trained on the corpus."""

import json
import multiprocessing

import pytest
from pydantic import ValidationError

from ablate.config.errors import DataError
from ablate.data import Text
from ablate.data.text import bpe as bpe_module
from ablate.data.text.bpe import parse_bpe_size, train_bpe
from ablate.data.text.sources import open_files

WORDS = ["cat", "mouse", "elephant", "Grüße", "from", "here", "to", "there"]


@pytest.fixture
def source(tmp_path):
    texts = [" ".join(WORDS[(number * step) % 8] for step in range(1, 12)) for number in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return open_files([tmp_path / "a.jsonl"], "text", tmp_path)


def in_another_process(source, cache, results):
    results.put(train_bpe(280, source, cache).identity)


def test_of_so_many_tokens_reversible_and_the_same_everywhere(source, tmp_path):
    trained = train_bpe(280, source, tmp_path / "one")
    assert (trained.vocab_size, trained.end_of_text) == (280, 0)
    text = "a mouse\n\tGrüße <|endoftext|> 日本"
    (ids,) = trained.encode([text])
    assert trained._tokenizer.decode(ids.tolist(), skip_special_tokens=False) == text
    assert 0 not in ids  # an end of text that is written out is text
    assert len(trained.encode(["elephant elephant"])[0]) < 6
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=in_another_process, args=(source, tmp_path / "two", results))
    process.start()
    assert results.get(timeout=60) == trained.identity
    process.join()


def test_trained_once_and_again_where_it_is_damaged(source, tmp_path, monkeypatch):
    first = train_bpe(270, source, tmp_path)
    (file,) = (tmp_path / "tokenizers").glob("*.json")
    train = bpe_module._train
    monkeypatch.setattr(bpe_module, "_train", None)
    assert train_bpe(270, source, tmp_path).identity == first.identity
    monkeypatch.setattr(bpe_module, "_train", train)
    file.write_text(file.read_text().replace("vocab", "vocub"))
    assert train_bpe(270, source, tmp_path).identity == first.identity


def test_on_the_training_text_alone_up_to_a_limit(source, tmp_path, monkeypatch):
    read = []
    texts = bpe_module._read_texts
    monkeypatch.setattr(bpe_module, "_read_texts", lambda *args: (read.append(text) or text for text in texts(*args)))
    config = Text(files=str(tmp_path / "a.jsonl"), tokenizer="bpe-260", layout="documents", seq_len=64)
    corpus = config.load(tmp_path / "cache")
    val = {bytes_of(config, corpus, index, tmp_path) for index in range(len(corpus.val))}
    assert val
    assert not val & set(read)
    monkeypatch.setattr(bpe_module, "TRAINED_ON", 200)
    read.clear()
    config.load(tmp_path / "other")
    assert 200 <= sum(len(text.encode()) for text in read) < 300


def bytes_of(config, corpus, index, tmp_path):
    train, _ = config._open_sides(open_files([tmp_path / "a.jsonl"], "text", tmp_path), tmp_path)
    tokenizer = train_bpe(260, train, tmp_path / "cache")
    inputs, targets = corpus.val[index]
    count = int((targets >= 0).sum())
    return tokenizer._tokenizer.decode([int(inputs[0]), *targets[: count - 1].tolist()])


def test_names(source, tmp_path):
    assert [parse_bpe_size(name) for name in ("bpe-4096", "bpe-", "bytes", "bpe-x", "bpe-" + "9" * 9999)] == [
        4096,
        *[None] * 4,
    ]
    for name in ("bpe-256", "bpe-x", "bpe-99999999999", "bpe-" + "9" * 9999):
        with pytest.raises(ValidationError, match=f"tokenizer {name}: the name of a BPE .* at least 257, as bpe-4096"):
            Text(files="a.txt", tokenizer=name)
    with pytest.raises(
        DataError, match=r"a.jsonl has enough words for \d+ tokens only. Set data.tokenizer=bpe-\d+ or less"
    ):
        train_bpe(5000, source, tmp_path)
