"""Differences of two models on the same questions, against scipy's bootstrap."""

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.questions import Question, Score, average_by_question, compare_by_question


def scores(values, name="q"):
    questions = [Question(f"{name}{i}", {"acc": value}, []) for i, value in enumerate(values)]
    return Score("task", {"acc": sum(values) / len(values)}, {}, questions)


def test_the_interval_is_that_of_scipy():
    generator = np.random.default_rng(5)
    baseline = generator.integers(2, size=300).astype(float)
    ours = np.where(generator.random(300) < 0.2, 1.0, baseline)
    found = compare_by_question(
        average_by_question([scores(ours)], "acc"), average_by_question([scores(baseline)], "acc")
    )
    theirs = stats.bootstrap(
        (ours - baseline,), np.mean, n_resamples=10_000, method="percentile", random_state=generator
    ).confidence_interval
    assert found.n == 300
    assert found.mean == pytest.approx(ours.mean() - baseline.mean())
    assert (found.low, found.high) == pytest.approx(tuple(theirs), abs=0.005)
    assert found.shown


def test_it_is_paired_by_question_and_averaged_over_runs():
    runs = [scores([1.0, 0.0, 1.0, 1.0]), scores([1.0, 1.0, 0.0, 1.0])]
    assert average_by_question(runs, "acc") == {"q0 1": 1.0, "q1 1": 0.5, "q2 1": 0.5, "q3 1": 1.0}
    same = compare_by_question(average_by_question(runs, "acc"), average_by_question(list(reversed(runs)), "acc"))
    assert (same.mean, same.low, same.high, same.shown) == (0.0, 0.0, 0.0, False)
    twice = scores([1.0, 0.0])
    twice = Score("task", {}, {}, [Question("same", q.values, []) for q in twice.questions])
    assert average_by_question([twice], "acc") == {"same 1": 1.0, "same 2": 0.0}
    apart = (scores([1.0, 1.0]), scores([1.0, 1.0], "other"))
    assert compare_by_question(*(average_by_question([score], "acc") for score in apart)) is None
