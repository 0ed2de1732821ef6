"""Preference pairs: the formats that they come in, and what is refused."""

import json

import pytest

from ablate.data.preferences import Pair, load_pairs
from ablate.errors import DataError


def said(role, text):
    return {"role": role, "content": text}


FORMATS = {
    "texts": {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    "UltraFeedback": {
        "prompt": "2+2?",
        "chosen": [said("user", "2+2?"), said("assistant", "4")],
        "rejected": [said("user", "2+2?"), said("assistant", "5")],
    },
    "a chat and two messages": {
        "conversations": [{"from": "human", "value": "2+2?"}],
        "chosen": {"from": "gpt", "value": "4"},
        "rejected": {"from": "gpt", "value": "5"},
    },
}


@pytest.fixture
def load(tmp_path):
    def build(*rows):
        (tmp_path / "pairs.json").write_text(json.dumps(rows))
        return load_pairs(str(tmp_path / "pairs.json"), "train", "plain", tmp_path)[0]

    return build


@pytest.mark.parametrize("row", FORMATS.values(), ids=list(FORMATS))
def test_every_format_gives_the_same_pair(load, row):
    assert load(row, row) == [Pair("2+2?\n", "4", "5")] * 2


def test_earlier_answers_stand_before_the_last_question(load):
    before = [said("system", "Brief."), said("user", "hi"), said("assistant", "hello"), said("user", "2+2?")]
    row = {"messages": before, "chosen": "4", "rejected": "5"}
    assert load(row, row)[0].prompt == "Brief.\n\nhi\nhello\n\n2+2?\n"


def test_a_folder_that_datasets_loads(tmp_path):
    (tmp_path / "set").mkdir()
    lines = "".join(json.dumps(FORMATS["UltraFeedback"]) + "\n" for _ in range(3))
    (tmp_path / "set" / "train.jsonl").write_text(lines)
    found, source = load_pairs(str(tmp_path / "set"), "train", "plain", tmp_path)
    assert found == [Pair("2+2?\n", "4", "5")] * 3
    assert "(train)" in source.name


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "a", "chosen": "b"}, r"entry 1: no column 'rejected'. Columns: 'prompt', 'chosen'. A pair has"),
        ({"chosen": "a", "rejected": "b", "promt": "c"}, r"entry 1: no question. .* Did you mean promt\?"),
        (
            {"prompt": "a", "chosen": 4, "rejected": "b"},
            r"'chosen' is neither a text nor a message nor a chat but a num",
        ),
        ({"prompt": "a", "chosen": [said("user", "b")], "rejected": "b"}, r"'chosen' does not end with an answer"),
        ({"messages": [said("assistant", "b")], "chosen": "a", "rejected": "b"}, r"does not end with a message of the"),
        (FORMATS["texts"], r"pairs.json has 1 preference pairs; at least 2"),
    ],
)
def test_what_is_wrong_is_told(load, row, text):
    with pytest.raises(DataError, match=text):
        load(row)
