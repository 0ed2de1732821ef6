"""Published figures stand beside ours and change nothing."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
from run_table import by_arm, put
from scipy import stats

from ablate.reports import literature
from ablate.reports.literature import compare_published, tabulate_published
from ablate.reports.report import assemble
from ablate.reports.verdict_sections import describe_verdict
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.spec.parts import Published
from ablate.verdict.questions import Question, Score

from .conftest import FRESH
from .hand_built import STUCK, build_record


def tabulate(record):
    return tabulate_published(compare_published(record), record.spec)


def test_ours_is_the_mean_of_that_metric_over_fresh_seeds(full):
    first, second = literature.compare_published(full)
    pre, mix = first.rows
    ours = {arm: np.exp([FRESH[arm][seed] for seed in FRESH["pre"]]) for arm in ("pre", "mix")}
    assert (first.source, first.metric) == ("Table 2 of a paper", "val/perplexity")
    assert pre.ours.mean == pytest.approx(ours["pre"].mean())
    assert mix.difference.interval == pytest.approx(
        tuple(stats.ttest_rel(ours["mix"], ours["pre"]).confidence_interval(1 - 0.8 * 0.05 / 2)),  # two comparisons
        rel=1e-3,
    )
    assert (pre.kind, pre.difference, pre.published_difference) == ("fresh seeds", None, None)
    assert mix.published_difference == pytest.approx(-0.5)
    assert second.rows[1].published_difference == pytest.approx(6.85)


def test_of_the_objective_it_is_what_the_verdict_rests_on(full):
    quoted = Published(source="elsewhere", metric="val/loss", values={"pre": 2.0, "post": 2.0, "mix": 2.0})
    record = replace(full, spec=full.spec.model_copy(update={"published": [quoted]}))
    compared = compare_record(record)
    for row in literature.compare_published(record)[0].rows:
        assert (row.ours, row.failures) == (compared[row.arm].estimate, compared[row.arm].failures)
        assert row.difference == compared[row.arm].difference


def test_an_arm_that_failed_on_every_fresh_seed_is_not_told_by_its_search(tmp_path, without_figures):
    quoted = [{"source": "elsewhere", "metric": "val/loss", "values": {"pre": 2.0, "post": 1.9, "mix": 1.8}}]
    values = {"pre": [2.1, 2.2, 2.15], "post": [None, STUCK, None], "mix": [STUCK, 2.0, 2.05]}
    record = build_record(values, promised={"post": 1.5}, published=quoted)
    _, post, mix = literature.compare_published(record)[0].rows
    assert (post.kind, post.ours, post.difference, post.failures.failed) == ("fresh seeds", None, None, 3)
    assert (mix.ours.mean, mix.ours.n) == (pytest.approx(2.025), 2)
    (section,) = tabulate(record)
    assert section.table.rows[1] == ["post", "fresh seeds", "-", "3 of 3", "-", "-", "1.900", "-0.100"]


def test_without_confirmation_it_is_the_best_of_the_search(full):
    found = literature.compare_published(put(full, confirmed={}))[0].rows
    assert [row.kind for row in found] == ["best of the search"] * 2
    assert found[1].ours.mean == pytest.approx(np.exp(1.712))
    assert found[1].difference.mean == pytest.approx(np.exp(1.712) - np.exp(1.735))
    assert found[1].difference.half_width is None


def test_unlike_figures_have_no_difference_and_missing_ones_are_told_so(full, tmp_path, without_figures):
    alone = put(full, confirmed={"mix": full.fresh("mix")})
    assert literature.compare_published(alone)[0].rows[1].difference is None
    quoted = Published(source="elsewhere", metric="val/accuracy", values={"mix": 0.5})
    record = replace(full, spec=full.spec.model_copy(update={"published": [quoted]}))
    row = literature.compare_published(record)[0].rows[0]
    assert (row.ours, row.kind, row.difference, row.published_difference) == (None, "", None, None)
    (section,) = tabulate(record)
    assert section.table.rows == [["mix", "-", "-", "-", "-", "0.500", "-"]]


def test_they_are_not_in_the_verdict(full, confirmed):
    verdicts = [describe_verdict(record, compare_record(record)) for record in (full, confirmed)]
    assert verdicts[0] == verdicts[1]


def test_perplexities_by_another_tokenizer_are_told_apart(full, tmp_path, without_figures):
    quoted = [Published(source=name, metric="val/perplexity", tokenizer=name, values={"mix": 20.0})
              for name in ("t5-base", "topics")]  # fmt: skip
    record = replace(full, spec=full.spec.model_copy(update={"published": quoted}))
    assert [source.tokenizers for source in literature.compare_published(record)] == [("t5-base", "topics"), None]
    first, second = tabulate(record)
    assert any("the tokenizer t5-base, ours use topics" in text for text in first.sentences)
    assert not any("tokenizer" in text for text in second.sentences)


# ---------------------------------------------------------------------------------------------------- stored scores

PIQA, BOOLQ = "eval/piqa/acc", "eval/boolq/acc"
BOTH = f"mean({PIQA}, {BOOLQ})"


def store_scores(monkeypatch, runs):
    """Store `runs`, run id -> task -> (share of right answers, questions, solved examples), as ablate evaluate does."""

    def score(task, share, questions=4, shots=0):
        asked = [Question(str(i), {"acc": share}, []) for i in range(questions)]
        return Score(task, {"acc": share}, {"acc": 0.1}, asked, shots).to_dict()

    stored = {run: {task: score(task, *own) for task, own in tasks.items()} for run, tasks in runs.items()}
    monkeypatch.setattr("ablate.reports.downstream.read_scores", lambda title: stored)


@pytest.fixture
def quote(monkeypatch, tmp_path, without_figures):
    """quote(fresh values, stored runs, change of the record) -> two tables of accuracies, and the sentences below."""

    def build(values, runs, change=lambda record: record):
        store_scores(monkeypatch, runs)
        quoted = [{"source": "T", "metric": metric, "values": {"pre": 0.4, "post": 0.5}} for metric in (PIQA, BOTH)]
        made = assemble(change(build_record(values, published=quoted)), tmp_path)
        text = " ".join(
            sentence
            for section in tabulate_published(made.published, made.record.spec)
            for sentence in section.sentences
        )
        assert [table["metric"] for table in made.to_dict()["published"]] == [PIQA, BOTH]
        return made.published, text

    return build


def test_scores_that_were_stored_after_training_are_ours_and_so_are_their_means(quote):
    piqa = {"pre": [0.5, 0.4, 0.6], "post": [0.7, 0.8, 0.7]}
    boolq = {"pre": [0.1, 0.3, 0.2], "post": [0.3, 0.4, 0.2]}
    runs = {
        f"run-{arm}-{i}": {"piqa": (piqa[arm][i],), "boolq": (boolq[arm][i],)}
        for arm in ("pre", "post")
        for i in range(3)
    }
    (alone, both), text = quote({"pre": [2.1, 2.2, 2.15], "post": [2.0, 2.05, 2.1]}, runs)
    for table, expected in ((alone, piqa), (both, {arm: np.add(piqa[arm], boolq[arm]) / 2 for arm in piqa})):
        pre, post = table.rows
        assert (pre.kind, pre.ours.n, post.ours.n, pre.unscored) == ("fresh seeds", 3, 3, 0)
        assert pre.ours.mean == pytest.approx(statistics.fmean(expected["pre"]))
        assert post.difference.mean == pytest.approx(np.mean(expected["post"]) - np.mean(expected["pre"]))
        interval = stats.ttest_1samp(expected["post"], 0).confidence_interval(1 - 0.8 * 0.05)
        assert post.ours.interval == pytest.approx(tuple(interval), rel=1e-3)
        assert (table.stored, table.unlike) == (True, [])
    assert "those that ablate evaluate stored" in text
    assert "not scored" not in text


def test_only_seeds_that_were_scored_count_and_the_others_are_told(quote):
    runs = {"run-pre-0": {"piqa": (0.5,)}, "run-pre-2": {"piqa": (0.7,)}, "run-post-0": {"piqa": (0.9,)}}
    (alone, both), text = quote({"pre": [2.1, 2.2, 2.15], "post": [2.0, None, 2.1]}, runs)
    pre, post = alone.rows
    assert (pre.ours.n, pre.ours.mean, pre.ours.interval, pre.unscored) == (2, pytest.approx(0.6), None, 1)
    assert (post.ours.n, post.ours.mean, post.failures.failed, post.unscored) == (1, 0.9, 1, 1)
    assert post.difference.mean == pytest.approx(0.9 - 0.5)  # on the seed that both have
    assert [row.ours for row in both.rows] == [None, None]  # BoolQ was not scored
    assert "Trained but not scored: pre 1 seed and post 1 seed. Without checkpoints=all" in text


def test_without_a_scored_fresh_seed_it_is_the_chosen_trial(quote):
    runs = {f"searched-{arm}": {"piqa": (0.5,), "boolq": (0.3,)} for arm in ("pre", "post")}

    def rename(record):  # by hand, those of the search are called as the fresh ones are
        trials = {arm: [replace(own[0], run_id=f"searched-{arm}")] for arm, own in by_arm(record).items()}
        return put(record, trials=trials, chosen={arm: own[0].number for arm, own in trials.items()})

    (_, both), _ = quote({"pre": [2.1, 2.2, 2.15], "post": [2.0, 2.05, None]}, runs, rename)
    assert [(row.kind, row.ours.mean, row.ours.n) for row in both.rows] == [("chosen trial", 0.4, 1)] * 2
    assert (both.rows[1].difference.mean, both.rows[1].difference.interval) == (0, None)
    assert both.rows[1].failures.failed == 1


@pytest.mark.parametrize("other", [(0.7, 3), (0.7, 4, 5)], ids=["questions", "shots"])
def test_scores_of_unlike_questions_have_no_mean(quote, other):
    values = {"pre": [2.1, 2.2, 2.15], "post": [2.0, 2.05, 2.1]}
    runs = {f"run-{arm}-{i}": {"piqa": (0.5,), "boolq": (0.3,)} for arm in ("pre", "post") for i in range(3)}
    (alone, both), text = quote(values, {**runs, "run-post-1": {"piqa": (0.5,), "boolq": other}})
    assert alone.rows[1].ours.n == 3
    assert ([row.ours for row in both.rows], both.unlike) == ([None, None], [BOOLQ])
    assert f"Not used: {BOOLQ}, as the runs were scored on different numbers of questions" in text


def test_what_the_trials_report_themselves_is_not_read_from_the_store(full, monkeypatch, tmp_path, without_figures):
    quoted = Published(source="elsewhere", metric=PIQA, values={"pre": 0.5})
    own = {"pre": [replace(t, metrics={**t.metrics, PIQA: 0.25}) for t in full.fresh("pre")]}
    record = put(
        full,
        spec=full.spec.model_copy(update={"published": [quoted]}),
        confirmed={**by_arm(full, "confirmation"), **own},
    )
    store_scores(monkeypatch, {t.run_id: {"piqa": (0.75,)} for t in own["pre"]})
    (table,) = assemble(record, tmp_path).published
    assert (table.rows[0].ours.mean, table.stored) == (0.25, False)
