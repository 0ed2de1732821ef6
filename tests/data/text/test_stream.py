"""Text tokenised while it is trained on: the rows of the cached way, in the order of the source, from anywhere on."""

import json
from itertools import islice

import datasets
import numpy as np
import pytest

from ablate.data import Text
from ablate.data.text import stream as stream_module
from ablate.data.text.sources import DatasetSource, FileSource

TEXTS = [f"{number:03} " + "word " * (number % 9) for number in range(120)]


@pytest.fixture(params=["files", "dataset"])
def config(request, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(stream_module, "BATCH", 300)
    monkeypatch.setattr(stream_module, "EVERY", 10)
    (tmp_path / "data" / "train").mkdir(parents=True)
    for number in range(2):
        lines = (json.dumps({"text": text}) + "\n" for text in TEXTS[number * 50 : 50 + number * 70])
        (tmp_path / f"data/train/{number}.jsonl").write_text("".join(lines))
    (tmp_path / "val.txt").write_text("something else " * 9)
    where = {"files": str(tmp_path / "data/train/*.jsonl")} if request.param == "files" else {
        "dataset": str(tmp_path / "data")
    }  # fmt: skip

    def build(**fields):
        return Text(**where, **{"val_files": str(tmp_path / "val.txt"), "seq_len": 24, "streaming": True, **fields})

    return build


def taken(corpus, count, **settings):
    return [
        (inputs.tolist(), targets.tolist()) for inputs, targets in islice(corpus.train.batches(8, 0, **settings), count)
    ]


LAYOUTS = pytest.mark.parametrize("layout", ["packed", "documents"])


@LAYOUTS
def test_an_epoch_is_what_the_cache_would_hold(config, tmp_path, layout):
    cached = config(layout=layout, streaming=False).load(tmp_path)
    streamed = config(layout=layout).load(tmp_path)
    items = len(cached.train)
    expected = [row.tolist() for row in cached.train.__getitems__(range(items))[1]]
    rows = [row for _, targets in taken(streamed, -(-3 * items // 8)) for row in targets]
    assert rows[: 3 * items] == expected * 3
    assert streamed.fingerprint == cached.fingerprint
    assert streamed.description.startswith("text: ")


@LAYOUTS
def test_ranks_share_each_batch(config, tmp_path, layout):
    corpus = config(layout=layout).load(tmp_path)
    whole = taken(corpus, 12)
    parts = [taken(corpus, 12, rank=rank, world_size=4) for rank in range(4)]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert ([row for share in shares for row in share[0]], [row for share in shares for row in share[1]]) == batch


@LAYOUTS
@pytest.mark.parametrize("remembered", [False, True])
def test_from_anywhere_on_whatever_the_workers(config, tmp_path, layout, remembered):
    corpus = config(layout=layout).load(tmp_path)
    whole = taken(corpus, 40)  # some epochs
    for start, workers in ((1, 0), (6, 2), (17, 0), (33, 1)):
        cache = tmp_path if remembered else tmp_path / f"{start}"
        again = config(layout=layout).load(cache)
        assert taken(again, 40 - start, start_batch=start, workers=workers) == whole[start:]


def noting(method, positions):
    def noted(self, position=None):
        positions.append(position)
        return method(self, position)

    return noted


@LAYOUTS
def test_going_on_reads_little_of_what_was_read(config, tmp_path, layout, monkeypatch):
    corpus = config(layout=layout).load(tmp_path)
    taken(corpus, 12)
    positions = []
    for kind in (FileSource, DatasetSource):
        monkeypatch.setattr(kind, "open", noting(kind.open, positions))
    taken(corpus, 1, start_batch=9)
    assert len(positions) == 1
    assert positions[0] is not None


def test_damaged_places_are_left_out(config, tmp_path):
    corpus = config().load(tmp_path)
    whole = taken(corpus, 20)
    (notes,) = (tmp_path / "streams").glob("*.jsonl")
    notes.write_text('{"row": 3, "tok\n[]\n' + notes.read_text() + '{"row":')
    assert taken(config().load(tmp_path), 10, start_batch=10) == whole[10:]


def test_a_folder_that_cannot_be_written_costs_time_alone(config, tmp_path):
    corpus = config().load(tmp_path)
    (tmp_path / "streams").touch()
    assert len(taken(corpus, 20)) == 20


@LAYOUTS
def test_a_limit_begins_again(config, tmp_path, layout):
    fields = {"layout": layout, "train_tokens": 500}
    cached, streamed = (config(streaming=way, **fields).load(tmp_path) for way in (False, True))
    items = len(cached.train)
    rows = [row for _, targets in taken(streamed, -(-2 * items // 8)) for row in targets]
    assert rows[: 2 * items] == cached.train.__getitems__(range(items))[1].tolist() * 2
    assert 10 < items < 40


def test_what_is_held_out_is_not_trained_on(config, tmp_path):
    fields = {"val_files": (), "layout": "documents", "val_fraction": 0.3}
    corpora = [config(streaming=way, train_tokens=10**6, **fields).load(tmp_path) for way in (False, True)]
    trained = {tuple(row) for inputs, _ in taken(corpora[1], 30) for row in inputs}
    val = {tuple(row.tolist()) for row in corpora[1].val.__getitems__(range(len(corpora[1].val)))[0]}
    assert not trained & val
    assert len(trained | val) == len({text[:24] for text in TEXTS})
    assert np.array_equal(corpora[0].val.numbers, corpora[1].val.numbers)
