"""Windows of long texts, against windows that are cut by hand from the same tokens."""

import pytest
import torch

from ablate.addons.papers.spans import answers
from ablate.addons.papers.spans.answers import build_windows
from ablate.addons.papers.spans.squad import SpanQuestion
from ablate.config.errors import DataError

transformers = pytest.importorskip("transformers")

WORDS = [f"w{n}" for n in range(60)]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "?", *WORDS]))
    return transformers.BertTokenizerFast.from_pretrained(folder)


def ask(count, answer="w0", name="q"):
    text = " ".join(WORDS[:count])
    return SpanQuestion(name, " who ?", text, (answer,), (text.index(answer),))


def cut_by_hand(count, length, step):
    """The ids of windows of `length` with [CLS] who ? [SEP] part [SEP], each `step` words later."""
    room, first, rows = length - 5, 0, []
    while True:
        part = range(first, min(first + room, count))
        ids = [2, 5, 6, 3, *(7 + n for n in part), 3]
        rows.append(ids + [0] * (length - len(ids)))
        if part.stop == count:
            return rows
        first += step


@pytest.mark.parametrize(
    ("count", "length", "overlap", "step"),
    [(8, 20, 128, 8), (15, 20, 128, 8), (40, 20, 128, 8), (60, 30, 4, 21), (60, 25, 19, 1)],
)
def test_a_long_text_is_cut_into_windows_that_overlap(tokenizer, monkeypatch, count, length, overlap, step):
    monkeypatch.setattr(answers, "OVERLAP", overlap)
    found = build_windows([ask(count), ask(3)], tokenizer, INPUTS, length)
    expected = cut_by_hand(count, length, step)
    width = max(len([one for one in row if one]) for row in expected)  # the longest of all windows
    expected.append([2, 5, 6, 3, 7, 8, 9, 3] + [0] * (length - 8))
    expected = torch.tensor(expected)[:, : max(width, 8)]
    assert found.inputs["input_ids"].equal(expected)
    assert found.inputs["attention_mask"].equal((expected != 0).long())
    places = torch.arange(expected.shape[1])
    assert found.inputs["token_type_ids"].equal(((expected != 0) & (places >= 4)).long())
    assert found.owners.tolist() == [0] * (len(expected) - 1) + [1]
    is_word = expected >= 7
    assert (found.characters[..., 0] >= 0).equal(is_word)
    for row, place in is_word.nonzero().tolist():
        begin, end = found.characters[row, place].tolist()
        assert ask(count).context[begin:end] == WORDS[expected[row, place] - 7]


def test_the_first_answer_is_the_target_in_the_windows_that_contain_it(tokenizer):
    question = ask(40, "w9 w10")
    found = build_windows([question], tokenizer, INPUTS, 20)  # words 0-14, 8-22, 16-30, ...
    assert found.targets.tolist() == [[13, 14], [5, 6], *[[0, 0]] * (len(found) - 2)]
    for (first, last), place in zip(found.targets.tolist(), found.characters, strict=True):
        if first:
            assert question.context[place[first, 0] : place[last, 1]] == "w9 w10"
    assert build_windows([ask(40, "w14 w15")], tokenizer, INPUTS, 20).targets.tolist()[:3] == [[0, 0], [10, 11], [0, 0]]


def test_only_the_arguments_of_the_model_are_given(tokenizer):
    assert list(build_windows([ask(3)], tokenizer, ("input_ids", "attention_mask"), 20).inputs) == [
        "input_ids",
        "attention_mask",
    ]


def test_a_question_that_fills_a_window_is_told(tokenizer):
    long = [ask(3, name=f"q{n}")._replace(question="who " * 18) for n in range(5)]
    with pytest.raises(DataError, match=r"5 questions fill the 20 tokens .*: q0, q1, q2 and 2 more. Shorten"):
        build_windows([ask(3), *long], tokenizer, INPUTS, 20)
