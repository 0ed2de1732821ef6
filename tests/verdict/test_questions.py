"""Differences of two models on the same questions, against scipy's bootstrap, and of arms over seeds too."""

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.questions import (
    Question,
    Score,
    average_by_question,
    average_tasks,
    bound_difference,
    compare_by_question,
    decompose,
)


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
    assert found.low > 0


def test_it_is_paired_by_question_and_averaged_over_runs():
    runs = [scores([1.0, 0.0, 1.0, 1.0]), scores([1.0, 1.0, 0.0, 1.0])]
    assert average_by_question(runs, "acc") == {"q0 1": 1.0, "q1 1": 0.5, "q2 1": 0.5, "q3 1": 1.0}
    same = compare_by_question(average_by_question(runs, "acc"), average_by_question(list(reversed(runs)), "acc"))
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    twice = scores([1.0, 0.0])
    twice = Score("task", {}, {}, [Question("same", q.values, []) for q in twice.questions])
    assert average_by_question([twice], "acc") == {"same 1": 1.0, "same 2": 0.0}
    apart = (scores([1.0, 1.0]), scores([1.0, 1.0], "other"))
    assert compare_by_question(*(average_by_question([score], "acc") for score in apart)) is None


def draw_differences(generator, seeds, questions, seed_sd, question_sd, rest_sd=1.0):
    """Differences of equal arms: normal parts of seeds, questions and both."""
    by_seed = seed_sd * generator.standard_normal((seeds, 1))
    by_question = question_sd * generator.standard_normal(questions)
    return by_seed + by_question + rest_sd * generator.standard_normal((seeds, questions))


def test_the_parts_are_those_of_the_analysis_of_variance():
    differences = draw_differences(np.random.default_rng(1), 5, 40, 0.3, 0.5)
    parts = decompose(differences)
    rest = differences - differences.mean(1, keepdims=True) - differences.mean(0) + differences.mean()
    mean_square = (rest**2).sum() / (4 * 39)
    assert parts.by_seed == pytest.approx(differences.mean(1))
    assert parts.of_questions == pytest.approx((differences.mean(0).var(ddof=1) - mean_square / 5) / 40)
    draws = [decompose(draw_differences(np.random.default_rng(n), 4, 30, 0.5, 0.8)).of_questions for n in range(2000)]
    assert np.mean(draws) == pytest.approx(0.8**2 / 30, rel=0.03)  # unbiased


def test_without_a_variance_of_questions_it_is_the_t_interval_over_seeds_and_without_one_of_seeds_that_over_questions():
    generator = np.random.default_rng(2)
    parts = decompose(draw_differences(generator, 4, 50_000, 1.0, 0.0, 0.1))
    found = bound_difference(parts, 0.01)
    theirs = stats.t.interval(0.99, 3, parts.by_seed.mean(), stats.sem(parts.by_seed))
    assert found.interval == pytest.approx(theirs, rel=0.001)
    differences = draw_differences(generator, 4, 100, 0.0, 1.0, 1e-6)
    found = bound_difference(decompose(differences), 0.01)
    over_questions = differences.mean(0)
    theirs = stats.t.interval(0.99, 99, over_questions.mean(), stats.sem(over_questions))
    assert found.interval == pytest.approx(theirs, rel=0.001)
    assert (found.n_seeds, found.n_questions, found.level) == (4, 100, 0.01)


def test_a_mean_over_tasks_has_a_quarter_of_the_variance_of_two_tasks():
    generator = np.random.default_rng(3)
    tasks = [decompose(draw_differences(generator, 3, n, 0.1, 1.0)) for n in (60, 80)]
    average = average_tasks(tasks)
    assert average.by_seed == pytest.approx((tasks[0].by_seed + tasks[1].by_seed) / 2)
    assert average.of_questions == pytest.approx((tasks[0].of_questions + tasks[1].of_questions) / 4)
    assert (average.questions, average.fewest) == (140, 60)


def test_there_is_no_interval_for_two_seeds_nor_where_seeds_do_not_vary():
    two = bound_difference(decompose(draw_differences(np.random.default_rng(4), 2, 50, 0.1, 1.0)), 0.05)
    assert (two.interval, two.excludes_zero, two.level, two.n_seeds) == (None, False, 0.0, 2)
    same = np.tile(np.array([1.0, 1.0, 0.0, 1.0]), (5, 1))  # each seed answers as the first
    found = bound_difference(decompose(same), 0.05)
    assert (found.mean, found.interval, found.excludes_zero) == (0.75, None, False)
    assert bound_difference(decompose(np.zeros((1, 30))), 0.05).interval is None
    assert bound_difference(decompose(np.ones((3, 1))), 0.05).interval is None
    assert bound_difference(decompose(np.random.default_rng(0).random((3, 9))), 0.0).interval is None


def test_tied_means_of_counted_answers_vary_by_their_rounding_at_least():
    tied = np.zeros((3, 100))
    for seed in range(3):
        tied[seed, seed] = 1.0  # one question each, and not the same
    found = bound_difference(decompose(tied), 0.05)
    width = stats.t.ppf(0.975, 2) * 0.01 / np.sqrt(6) / np.sqrt(3)
    assert found.mean == pytest.approx(0.01)
    assert found.high - found.mean == pytest.approx(width, rel=0.01)


@pytest.mark.parametrize(("seeds", "seed_sd"), [(3, 0.0), (3, 1.0), (5, 2.0)])
@pytest.mark.parametrize("question_sd", [0.0, 0.5])
def test_a_family_of_equal_arms_is_told_apart_in_5_percent_and_the_interval_holds_the_truth(
    seeds, seed_sd, question_sd
):
    """Reduced from benchmarks/downstream.py: four tasks and their average, answers right or wrong."""
    generator, tables, questions, family = np.random.default_rng(6), 250, 100, 5
    false_claims = covered = 0
    for _ in range(tables):
        parts = []
        easiness = generator.standard_normal((4, 1, questions))
        answers = []
        for _ in range(2):
            ability = seed_sd * 1.7 * np.sqrt(0.25 / questions) / 0.4 * generator.standard_normal((4, seeds, 1))
            own = question_sd * generator.standard_normal((4, 1, questions))
            answers.append(easiness + own + ability + generator.standard_normal((4, seeds, questions)) > 0)
        parts = [decompose(ours.astype(float) - theirs) for ours, theirs in zip(*answers, strict=True)]
        parts.append(average_tasks(parts))
        covered += sum(not bound_difference(each, 0.05).excludes_zero for each in parts)
        false_claims += any(bound_difference(each, 0.05 / family).excludes_zero for each in parts)
    assert false_claims / tables <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / tables)
    assert covered / (tables * family) >= 0.93
