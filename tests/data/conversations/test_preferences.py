"""Preference pairs: the formats that they come in, and what is refused."""

import json

import pytest

from ablate.config.errors import DataError
from ablate.data import IGNORED, Preferences
from ablate.data.base import Origin
from ablate.data.conversations.preferences import Pair, read_pairs
from ablate.data.conversations.rows import TEMPLATES, open_rows


def said(role, text):
    return {"role": role, "content": text}


FORMATS = {
    "texts": {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    "UltraFeedback": {
        "prompt": "2+2?",
        "chosen": [said("user", "2+2?"), said("assistant", "4")],
        "rejected": [said("user", "2+2?"), said("assistant", "5")],
    },
    "a chat and a text": {"chosen": "4", "rejected": [said("user", "2+2?"), said("assistant", "5")]},
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
        source = open_rows(Origin([str(tmp_path / "pairs.json")]), tmp_path)
        return [pair for _, pair in read_pairs(source, TEMPLATES["plain"], source.name).rows]

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
    corpus = Preferences(dataset=str(tmp_path / "set"), template="plain", val_fraction=0.4).load(tmp_path)
    assert corpus.train_pairs.items == [Pair("2+2?\n", "4", "5")] * 2
    assert corpus.val_pairs.items == [Pair("2+2?\n", "4", "5")]


def test_the_corpus_knows_what_pairs_take_and_trains_on_the_chosen_answers(tmp_path):
    rows = [{"prompt": "ab", "chosen": "c" * n, "rejected": "defg"} for n in range(1, 11)]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    data = Preferences(files=str(tmp_path / "pairs.json"), template="plain", seq_len=12, val_fraction=0.2)
    corpus = data.load(tmp_path)
    assert (len(corpus.train_pairs), len(corpus.val_pairs)) == (8, 2)
    for part in (corpus.train_pairs, corpus.val_pairs):
        assert part.prompts.tolist() == [len("ab\n")] * len(part)
        assert part.longest.tolist() == [3 + max(4, len(pair.chosen)) + 1 for pair in part.items]
        assert part.select_fitting(9) == [pair for pair in part.items if len(pair.chosen) <= 5]
        assert part.select_fitting(9, answer=6) == part.items
        assert part.select_fitting(9, answer=7) == []
    inputs, targets = corpus.train.__getitems__([0])
    chosen = corpus.train_pairs.items[0].chosen
    answer = targets[targets != IGNORED].tolist()
    assert bytes(answer[:-1]).decode() == chosen
    assert answer[-1] == 0
    assert bytes(inputs[0, :3].tolist()) == b"ab\n"
    assert data.load(tmp_path).fingerprint == corpus.fingerprint


def test_a_corpus_of_pairs_that_do_not_fit_is_refused(tmp_path):
    (tmp_path / "pairs.json").write_text(json.dumps([FORMATS["texts"]] * 3))
    with pytest.raises(DataError, match=r"No prompt of .*pairs.json leaves room for an answer within seq_len=4"):
        Preferences(files=str(tmp_path / "pairs.json"), seq_len=4).load(tmp_path)


HH = "\n\nHuman: What is {}?\n\nAssistant:"
DIALOGUES = [
    (HH.format("2+2") + " 4", HH.format("2+2") + " 5 I think"),
    (HH.format("2+2") + " It is 4", HH.format("2+2") + " It is 5"),
    (HH.format("red") + " A\n\nHuman: so?\n\nAssistant: b", HH.format("red") + " a  c"),
]
"""Whole dialogues; their prompts are of TRL's rule, with words that both answers begin with."""


@pytest.mark.parametrize("sides", DIALOGUES)
def test_the_common_beginning_of_two_dialogues_is_the_prompt_as_in_trl(load, sides):
    pytest.importorskip("trl")
    from trl.data_utils import extract_prompt

    row = dict(zip(("chosen", "rejected"), sides, strict=True))
    theirs = extract_prompt(row)
    assert load({**row, "turns": 3}, row) == [Pair(theirs["prompt"], theirs["chosen"], theirs["rejected"])] * 2
    assert theirs["prompt"].startswith(sides[0][:10])


def test_the_common_turns_of_two_chats_are_the_prompt_as_in_trl(load):
    pytest.importorskip("trl")
    from trl.data_utils import extract_prompt

    row = {
        "chosen": [said("user", "2+2?"), said("assistant", "4"), said("user", "sure?"), said("assistant", "yes")],
        "rejected": [said("user", "2+2?"), said("assistant", "5")],
    }
    theirs = extract_prompt(row)
    assert [[turn["content"] for turn in theirs[side]] for side in ("prompt", "chosen", "rejected")] == [
        ["2+2?"],
        ["4", "sure?", "yes"],
        ["5"],
    ]
    assert load(row, row) == [Pair("2+2?\n", "4\n\nsure?\nyes", "5")] * 2


def test_pairs_from_which_nothing_is_learnt_are_left_out_and_counted(tmp_path):
    question = HH.format("red")
    rows = [{"chosen": f"{question} red{n}", "rejected": f"{question} blue{n}"} for n in range(4)] + [
        {"chosen": question, "rejected": f"{question} blue"},
        {"chosen": f"{question} red", "rejected": f"{question} red"},
        {"prompt": "a", "chosen": "b", "rejected": "b"},
        {"prompt": "a", "chosen": "b", "rejected": " "},
    ]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    corpus = Preferences(files=str(tmp_path / "pairs.json"), seq_len=64, val_fraction=0.25).load(tmp_path)
    assert corpus.description.endswith(
        "3 training pairs, 1 held out, 2 left out for an empty answer, 2 left out for equal answers"
    )
    assert sorted([*corpus.train_pairs.items, *corpus.val_pairs.items]) == [
        Pair(question, f" red{n}", f" blue{n}") for n in range(4)
    ]
    assert corpus.train_pairs.prompts.tolist() == [len(question)] * 3
    inputs, targets = corpus.train.__getitems__([0])
    assert bytes(targets[targets != IGNORED].tolist()[:-1]).decode() == corpus.train_pairs.items[0].chosen
    assert bytes(inputs[0, : len(question)].tolist()).decode() == question  # in no template
    (tmp_path / "pairs.json").write_text(json.dumps(rows[3:]))
    with pytest.raises(DataError, match="has 1 preference pairs, 2 left out for an empty answer, 2 left out for equal"):
        Preferences(files=str(tmp_path / "pairs.json")).load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"dataset": "/"},
            ("^/ is the root of the file system, not a dataset. Give the folder of a dataset, or its files"),
        ),
        ({"files": "/"}, "^/ is a folder. Name its files"),
        ({"files": "a" * 300 + ".json"}, "^There is no file /.*/aaa"),
        ({"files": "a\0b.json"}, "^There is no file /.*/a\0b.json"),
    ],
)
def test_what_holds_no_pairs(tmp_path, settings, text):
    with pytest.raises(DataError, match=text):
        Preferences(**settings).load(tmp_path)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "a", "chosen": "b"}, r"entry 1: no column 'rejected'. Columns: 'prompt', 'chosen'. A pair has"),
        ({"chosen": "a", "rejected": "b", "promt": "c"}, r"entry 1: no prompt. .* Did you mean promt\?"),
        (
            {"prompt": "a", "chosen": 4, "rejected": "b"},
            r"'chosen' must be a text, a message or a chat, but is a num",
        ),
        ({"prompt": "a", "chosen": [said("user", "b")], "rejected": "b"}, r"'chosen' does not end with an answer"),
        ({"messages": [said("assistant", "b")], "chosen": "a", "rejected": "b"}, r"does not end with a message of the"),
        (
            {
                "chosen": [said("user", "a"), said("assistant", "b")],
                "rejected": [said("user", "c"), said("assistant", "d")],
            },
            r"entry 1: 'chosen' and 'rejected' answer different prompts; message 1 is user: 'a' and user: 'c'. A pair",
        ),
        (
            {
                "prompt": "a",
                "chosen": [said("user", "a"), said("assistant", "b")],
                "rejected": [said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")],
            },
            r"answer different prompts; message 2 is missing and assistant: 'b'",
        ),
        (
            {"chosen": "Yes", "rejected": "No"},
            "no prompt. .*; 'chosen' and 'rejected' have no common beginning. A pair",
        ),
        ({"chosen": " Yes", "rejected": " No"}, "no prompt. .*have no common beginning"),
        (
            {"question": "Is it?", "chosen": "It is", "rejected": "It isn't"},
            "no prompt. Columns: 'question', .*; their common beginning is not taken as the prompt, since",
        ),
        (
            {
                "chosen": [said("user", "a"), said("assistant", "b"), said("user", "c"), said("assistant", "d")],
                "rejected": [said("user", "a"), said("assistant", "b"), said("user", "e"), said("assistant", "f")],
            },
            "answer different prompts; message 3 is user: 'c' and user: 'e'",
        ),
        (FORMATS["texts"], r"pairs.json has 1 preference pairs; at least 2"),
    ],
)
def test_what_is_wrong_is_told(load, row, text):
    with pytest.raises(DataError, match=text):
        load(row)
