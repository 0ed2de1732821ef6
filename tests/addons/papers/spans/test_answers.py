"""The choice of a span, against a loop over all pairs of the likeliest tokens; and scores, against ones by hand."""

import math

import pytest
import torch

from ablate.addons.papers.spans.answers import (
    LONGEST,
    N_BEST,
    Spans,
    Windows,
    choose_answers,
    find_spans,
    score_answers,
)
from ablate.addons.papers.spans.squad import SpanQuestion


def find_by_loop(begins, ends, is_text, count):
    """The best (score, first, last) of one window with `count` tokens: the n-best search of SQuAD's baselines."""
    best = (-math.inf, None, None)
    for first in sorted(range(count), key=lambda i: -begins[i])[:N_BEST]:
        for last in sorted(range(count), key=lambda i: -ends[i])[:N_BEST]:
            if is_text[first] and is_text[last] and 0 <= last - first < LONGEST:
                best = max(best, (begins[first] + ends[last], first, last))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_the_best_span_is_that_of_a_loop(seed):
    generator = torch.Generator().manual_seed(seed)
    begins, ends = torch.randn(2, 6, 90, generator=generator, dtype=torch.float32)
    counts = [90, 70, 50, 30, 12, 90]
    ends[5, :60] += 5  # the likeliest ends are before the likeliest begins, or too far away
    begins[5, 40:] += 5
    is_text = torch.zeros(6, 90, dtype=torch.bool)
    for row, count in enumerate(counts):
        is_text[row, 10 : count - 1] = True
    there = torch.arange(90) < torch.tensor(counts)[:, None]
    spans = find_spans(begins, ends, is_text, there)
    for row, count in enumerate(counts):
        score, first, last = find_by_loop(begins[row].tolist(), ends[row].tolist(), is_text[row].tolist(), count)
        assert spans.scores[row].item() == pytest.approx(score, rel=1e-6)
        assert (spans.first[row].item(), spans.last[row].item()) == (first, last)
    longest = torch.zeros(1, 90)
    begins, ends = longest.clone(), longest.clone()
    begins[0, 20], ends[0, [20 + LONGEST, 19 + LONGEST]] = 9.0, torch.tensor([9.0, 8.0])
    everything = torch.ones(1, 90, dtype=torch.bool)
    assert find_spans(begins, ends, everything, everything).last.item() == 19 + LONGEST  # 30 tokens, not 31


def test_a_window_whose_likeliest_tokens_are_no_text_has_no_span():
    begins = torch.arange(60.0)[None]
    is_text = torch.arange(60)[None] < 60 - N_BEST
    there = torch.ones_like(is_text)
    assert find_spans(begins, begins, is_text, there).scores.tolist() == [-math.inf]
    assert find_spans(begins * math.nan, begins, ~is_text, there).first.shape == (1,)  # of a broken model


def test_an_answer_is_the_best_of_all_windows_of_its_question():
    questions = [SpanQuestion(name, "?", "one two three", ("two",), (4,)) for name in "abc"]
    places = torch.tensor([[-1, -1], [0, 3], [4, 7], [8, 13]]).expand(4, 4, 2)
    windows = Windows(questions, {}, torch.tensor([0, 0, 1, 2]), places, torch.zeros(4, 2))
    scores = torch.tensor([1.0, 2.0, -3.0, -math.inf])
    spans = Spans(scores, torch.tensor([1, 2, 1, 1]), torch.tensor([1, 3, 2, 1]))
    assert choose_answers(windows, spans) == ["two three", "one two", ""]


def test_exact_match_and_f1_by_hand():
    answers = [  # prediction, answers that count as right, exact match, F1
        ("The Cat!", ("a cat",), 1, 1.0),
        ("cat sat", ("cat sat on mats",), 0, 2 * 1 * 0.5 / 1.5),
        ("on the mat", ("a dog", "mat on", "mat"), 0, 1.0),
        ("", ("cat",), 0, 0.0),
        ("the the cat cat", ("cat dog",), 0, 0.5),
    ]
    questions = [SpanQuestion(str(n), "?", "", right, (0,)) for n, (_, right, _, _) in enumerate(answers)]
    scores = score_answers(questions, [prediction for prediction, *_ in answers])
    assert scores["exact_match"] == pytest.approx(1 / 5)
    assert scores["f1"] == pytest.approx(sum(f1 for *_, f1 in answers) / 5)
