"""Downstream scores in the report of a sweep."""

import json
from dataclasses import replace

import numpy as np
import pytest
from bundles.conftest import run_in_memory
from run_table import by_arm, put

from ablate.config.errors import StoreError
from ablate.reports import downstream as module
from ablate.reports.downstream import add_scores, compare_downstream
from ablate.reports.downstream import tabulate_downstream as tabulate
from ablate.reports.report import assemble
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks, nominal_levels
from ablate.verdict.questions import Question, Score, bound_difference, decompose


def score(values, shots=0, task="piqa", first=0):
    questions = [Question(f"{task} {first + i}", {"acc": value}, [0.0, -1.0]) for i, value in enumerate(values)]
    return Score(task, {"acc": sum(values) / len(values)}, {"acc": 0.1}, questions, shots).to_dict()


def right(count, of=40):
    return [1.0] * count + [0.0] * (of - count)


@pytest.fixture
def evaluate(monkeypatch):
    """`evaluate(record, {arm: {seed: {task: values}}})` gives the runs on fresh seeds names and scores, and returns the
    record."""

    def score_seeds(record, values):
        known, confirmed = {}, {}
        for arm, trials in by_arm(record, FRESH).items():
            confirmed[arm] = [replace(t, run_id=f"{arm}-{t.seed}") for t in trials]
            for trial in confirmed[arm]:
                if tasks := values.get(arm, {}).get(trial.seed):
                    known[trial.run_id] = {task: score(own, task=task) for task, own in tasks.items()}
        monkeypatch.setattr(module, "read_scores", lambda experiment: known if experiment == record.title else {})
        return add_scores(put(record, confirmed=confirmed))

    return score_seeds


SEEDS = (8, 9, 10, 11, 12)
PRE = {seed: {"piqa": right(10 + i % 2)} for i, seed in enumerate(SEEDS)}
MIX = {seed: {"piqa": right(29 + (i + 1) % 3)} for i, seed in enumerate(SEEDS)}


def test_arms_are_paired_by_question_and_seed(confirmed, evaluate, tmp_path, without_figures):
    record = evaluate(confirmed, {"pre": PRE, "mix": MIX})
    found = compare_downstream(record)
    (row,) = found.rows
    assert found.runs == {"pre": 5, "mix": 5}
    assert (found.comparisons, found.family) == (1, 3)  # two of the objective
    assert row.means == {"pre": pytest.approx(52 / 200), "mix": pytest.approx(151 / 200)}
    pairs = np.array([np.array(MIX[s]["piqa"]) - PRE[s]["piqa"] for s in SEEDS])
    level = nominal_levels(Looks((5,), 5), 0.05 / 3)[-1]
    assert row.differences["mix"] == bound_difference(decompose(pairs), level)
    assert found.list_shown(row) == ["mix"]
    (section,) = tabulate(found)
    assert section.table.header == ["task", "shots", "metric", "n", "pre", "mix", "mix, difference to pre"]
    assert section.table.rows[0][:6] == ["piqa", "0", "acc", "40", "0.260", "0.755"]
    assert section.table.rows[0][6].startswith("+0.495 [+0.")
    assert section.table.rows[0][6].endswith(" *")
    assert section.table.strong == {0}
    text = " ".join(section.sentences)
    assert "Runs: pre 5 fresh seeds, mix 5 fresh seeds." in text
    assert "The error of 5 % covers 3 comparisons" in text
    demo = assemble(record, tmp_path)
    assert "Downstream tasks" in demo.page()
    assert "Downstream tasks" in demo.table()
    plain = json.loads(json.dumps(demo.to_dict()["downstream"]))
    difference = plain["rows"][0]["differences"]["mix"]
    assert (difference["n"], difference["n_questions"], difference["n_seeds"], difference["shown"]) == (40, 40, 5, True)
    assert difference["interval"] == [difference["low"], difference["high"]]
    assert difference["level"] == pytest.approx(level)
    assert (plain["family"], plain["runs"]) == (3, {"pre": 5, "mix": 5})


def test_two_seeds_are_figures_and_a_failed_or_unscored_seed_is_told(confirmed, evaluate):
    two = {seed: MIX[seed] for seed in (8, 9)}
    found = compare_downstream(evaluate(confirmed, {"pre": PRE, "post": MIX, "mix": two}))
    (row,) = found.rows
    assert (row.differences["mix"].interval, row.differences["mix"].n_seeds) == (None, 2)
    assert row.differences["post"].n_seeds == 3  # two diverged, whatever was scored of them
    assert (found.comparisons, found.runs) == (1, {"pre": 5, "post": 3, "mix": 2})
    assert found.left_out == {"post": 2, "mix": 3}
    (section,) = tabulate(found)
    text = " ".join(section.sentences)
    assert "mix and pre: 2 seeds scored for both; a verdict needs 3 seeds" in text
    assert (
        "The difference of post to pre leaves out 2 seeds of 5, on which one of the two failed or was not scored."
        in text
    )
    assert "[" not in section.table.rows[0][-1]


def test_the_best_trials_of_a_search_are_figures(confirmed, monkeypatch):
    known = {confirmed.best("pre").run_id: {"piqa": score([1.0, 0.0, 1.0, 1.0])}}
    known[confirmed.best("post").run_id] = {"piqa": score([0.0, 1.0])}
    monkeypatch.setattr(module, "read_scores", lambda experiment: known)
    found = compare_downstream(add_scores(put(confirmed, confirmed={})))
    (row,) = found.rows
    assert (row.n, row.means) == (2, {"pre": 0.5, "post": 0.5})  # on the questions that all were asked
    assert (row.differences["post"].mean, row.differences["post"].n_seeds, found.family) == (0.0, 1, 0)
    (section,) = tabulate(found)
    assert not section.table.strong
    assert "Runs: pre a trial of the search, post a trial of the search." in section.sentences[0]
    assert "1 seed scored for both" in section.sentences[1]


def test_what_was_scored_is_the_trial_that_was_chosen(confirmed, monkeypatch):
    """As `ablate evaluate sweep:NAME` scores that one, where no fresh seed keeps its checkpoint."""
    best = confirmed.best("pre")
    other = next(t for t in confirmed.search("pre") if t.status == "completed" and t.run_id != best.run_id)
    known = {best.run_id: {"piqa": score([0.0] * 4)}, other.run_id: {"piqa": score([1.0] * 4)}}
    monkeypatch.setattr(module, "read_scores", lambda experiment: known)
    found = compare_downstream(add_scores(put(confirmed, confirmed={}, chosen={"pre": other.number})))
    assert found.rows[0].means == {"pre": 1.0}


def test_all_tasks_arms_and_averages_are_one_family_and_every_look_counts(confirmed, evaluate):
    tasks = {"piqa": PRE, "boolq": MIX}
    both = {seed: {task: values[seed]["piqa"] for task, values in tasks.items()} for seed in SEEDS}
    other = {seed: {"piqa": MIX[seed]["piqa"], "boolq": MIX[seed]["piqa"]} for seed in SEEDS}
    record = evaluate(confirmed, {"pre": both, "mix": other, "post": other})
    found = compare_downstream(record)
    assert [row.task for row in found.rows] == ["piqa", "boolq", "mean of 2 tasks"]
    assert (found.comparisons, found.family) == (6, 8)  # two of the objective
    piqa, boolq, mean = found.rows
    assert mean.differences["mix"].mean == pytest.approx(piqa.differences["mix"].mean / 2)
    assert mean.n == 80
    assert boolq.differences["mix"].interval is None  # the same answers on every seed
    text = " ".join(tabulate(found)[0].sentences)
    assert "The error of 5 % covers 8 comparisons, including those of the objective in the whole file" in text
    assert "No interval if every question has the same difference on each seed" in text
    assert "post on boolq, mix on boolq" in text
    larger = replace(record, spec=record.spec.model_copy(update={"family": 4}))  # further sizes
    found = compare_downstream(larger)
    assert (found.comparisons, found.family) == (6 + 3 * 4, 2 + 4 + 18)  # three rows for each of their four pairs too
    assert compare_record(replace(larger, scored=18))["mix"].family == 24
    looks = Looks((3, 4, 5), 12)
    looked = compare_downstream(replace(record, looks={"mix": looks, "post": looks}))
    assert looked.rows[0].differences["mix"].level == pytest.approx(nominal_levels(looks, 0.05 / 8)[-1])
    assert looked.rows[0].differences["mix"].level < piqa.differences["mix"].level


def test_the_parts_of_a_group_do_not_count_twice_in_the_average(confirmed, monkeypatch):
    known, confirmations = {}, {}
    for arm in ("pre", "mix"):
        confirmations[arm] = [replace(t, run_id=f"{arm}-{t.seed}") for t in confirmed.fresh(arm)]
        for i, trial in enumerate(confirmations[arm]):
            tasks = {"law": score(right(5 + i, 10), task="q"), "art": score(right(4 + i, 10), task="q", first=10)}
            tasks["mmlu"] = score(right(5 + i, 10) + right(4 + i, 10), task="q")
            known[trial.run_id] = {**tasks, "piqa": score(right(12 + i, 20))}
    monkeypatch.setattr(module, "read_scores", lambda experiment: known)
    rows = compare_downstream(add_scores(put(confirmed, confirmed=confirmations))).rows
    assert (rows[-1].task, rows[-1].n) == ("mean of 2 tasks", 40)  # mmlu and piqa


def test_seeds_that_share_a_start_claim_nothing_beyond_it(confirmed, evaluate):
    tree = confirmed.spec.to_tree()
    tree["experiment"]["warm_start"] = {"from": "sweep:small/pre", "copy": "all"}
    tree["factor"] = ["norm"]
    record = evaluate(replace(confirmed, spec=Sweep.from_tree(tree)), {"pre": PRE, "mix": MIX})
    found = compare_downstream(record)
    (row,) = found.rows
    assert row.differences["mix"].excludes_zero
    assert found.list_shown(row) == []
    assert found.shared_starts["mix"] == "stage-1 model (sweep:small/pre)"
    (section,) = tabulate(found)
    assert not section.table.strong
    assert "*" not in section.table.rows[0][-1]
    assert "the intervals do not include the variance of these models" in section.sentences[-1]
    assert not found.to_dict()["rows"][0]["differences"]["mix"]["shown"]


def give_answers(kind, right_of):
    """Return the record of a sweep, with scores of all fresh seeds: `right_of(arm, seed)` right answers of 40."""
    record = run_in_memory(kind)
    confirmed = {
        arm: [replace(run, scores={"piqa": Score.from_dict(score(right(right_of(arm, run.seed))))}) for run in runs]
        for arm, runs in by_arm(record, FRESH).items()
    }
    return put(record, confirmed=confirmed)


def test_arms_of_a_grid_are_compared_at_the_same_point():
    """Post-LN is at its best where Pre-LN is at its worst; on the stuck and diverged seeds neither is asked."""
    answers = {"pre lr=0.001": 10, "post lr=0.001": 20, "pre lr=0.003": 20, "post lr=0.003": 12}
    found = compare_downstream(give_answers("grid", lambda arm, seed: answers.get(arm, 15) + seed % 2))
    (row,) = found.rows
    assert row.differences["post lr=0.001"].mean == pytest.approx(10 / 40)
    assert row.differences["post lr=0.003"].mean == pytest.approx(-8 / 40)
    assert not [arm for arm in row.differences if arm.startswith("pre")]
    assert row.differences["post lr=0.001"].n_seeds == 3  # of 4, as one is stuck
    assert "post lr=0.009" not in row.means  # failed on all seeds: no figure of a failed run stands for it
    header = tabulate(found)[0].table.header
    assert "post lr=0.003, difference to pre lr=0.003" in header


def test_many_arms_have_a_row_each(monkeypatch):
    found = compare_downstream(give_answers("grid", lambda arm, seed: 10 + seed % 2))
    wide = tabulate(found)[0]
    monkeypatch.setattr("ablate.reports.downstream.MOST_COLUMNS", 2)
    (section,) = tabulate(found)
    assert section.table.header == ["task", "shots", "metric", "n", "arm", "mean", "difference to the baseline"]
    assert [row[4] for row in section.table.rows] == list(found.runs)
    (row,) = wide.table.rows
    wide_cells = dict(zip(wide.table.header, row, strict=True))
    for *_, arm, mean, difference in section.table.rows:
        assert mean == wide_cells[arm]
        base = found.baselines.get(arm)
        assert difference == (wide_cells[f"{arm}, difference to {base}"] if base else "-")
    assert section.sentences == wide.sentences


def test_cells_of_a_factorial_have_no_differences():
    found = compare_downstream(give_answers("factorial", lambda arm, seed: 10 + seed % 2))
    assert len(found.runs) == 4
    assert [row.differences for row in found.rows] == [{}]


def test_scores_that_cannot_be_read_are_told(confirmed, tmp_path, without_figures, monkeypatch):
    """The error of the verdict would be shared among more comparisons with them."""

    def fail(experiment):
        raise StoreError("no server")

    monkeypatch.setattr(module, "read_scores", fail)
    assert "Scores on downstream tasks are missing, if there are any: no server" in assemble(confirmed, tmp_path).notes


def test_nothing_is_said_where_nothing_was_evaluated(made):
    assert compare_downstream(made.record).rows == []
    assert tabulate(compare_downstream(made.record)) == []
    assert "Downstream" not in made.table()
