"""Sweeps whose objective is a mean of metrics or a score on a downstream task: read in training, and reported."""

import statistics

import pytest
from evaluation.task_files import write_tasks
from optuna.storages import InMemoryStorage
from scheduler.small import run_here

from ablate import tracking
from ablate.cli.ui import build_views
from ablate.config.errors import ConfigError, DataError
from ablate.reports.labels import label_metric
from ablate.reports.report import report
from ablate.scheduler.own_runs import RUNNER
from ablate.sweeps.verdict_summary import name_unit
from benchmarks.simulation.sweeps import simulate

pytest.importorskip("lm_eval")
PARTS = ["eval/piqa/acc_norm", "eval/winogrande/acc"]
MEAN = f"mean({', '.join(PARTS)})"


@pytest.fixture
def scored(spec, tiny_settings, tmp_path):
    """scored(objective) -> a sweep of one training, which scores two tasks every four updates."""

    def build(metric=MEAN, **evaluation):
        tasks = {"tasks": ["piqa", "winogrande"], "task_data": str(write_tasks(tmp_path / "tasks")), "every_n_steps": 4}
        return spec(
            experiment={**tiny_settings, "evaluation": {**tasks, **evaluation}},
            arms={"pre": {"norm": "pre"}},
            search={"optimizer.lr": [1e-2]},
            sampler="grid",
            objective={"metric": metric},
            published=[{"source": "a paper", "metric": metric, "values": {"pre": 0.5}}],
        )

    return build


def test_a_mean_of_scores_is_compared_from_the_first_validation_to_the_report(store, scored):
    record = run_here(scored())
    (trial,) = record.search("pre")
    client = tracking.client()
    history = {
        name: {point.step // trial.items_per_update: point.value for point in points}
        for name in [*PARTS, "objective"]
        if (points := client.get_metric_history(trial.run_id, name))
    }
    means = {step: statistics.fmean(history[part][step] for part in PARTS) for step in (4, 8, 12)}
    assert trial.curve == history["objective"] == means
    assert trial.value == means[12] == statistics.fmean(trial.metrics[part] for part in PARTS)
    assert "val/loss" in trial.metrics
    assert record.score_items == dict.fromkeys(PARTS, 2)
    assert build_views("small")["search"]["selectedColumns"][0] == "metrics.`objective`"

    made = report(record, log=False)
    plain = made.to_dict()
    assert plain["objective"] == {"metric": MEAN, "direction": "maximize"}
    ((row,),) = (table["rows"] for table in plain["published"])
    assert (row["ours"]["mean"], row["published"]) == (trial.value, 0.5)
    assert any("Scores of fewer than 100 questions: eval/piqa/acc_norm (2)" in note for note in made.notes)
    assert f"small: {MEAN}, higher is better" in " ".join(made.table().split())
    assert MEAN in made.page()


def test_a_single_score_is_an_objective_and_read_where_it_is_there(store, scored):
    record = run_here(scored("eval/piqa/acc_norm", every_n_steps=None, limit=1))
    (trial,) = record.search("pre")
    assert trial.curve == {12: trial.metrics["eval/piqa/acc_norm"]}
    assert record.score_items == {"eval/piqa/acc_norm": 1}


def test_a_trial_without_the_score_that_it_is_compared_by_fails_with_the_reason(scored, monkeypatch):
    """As one that was begun before its checkpoints had scores."""
    monkeypatch.setattr("ablate.scheduler.tasks.read_metric", lambda values, metric: None)
    (trial,) = simulate(scored(), lambda arm, params, seed: 0.5, InMemoryStorage(), trials=1).search("pre")
    assert (trial.status, trial.reason) == ("failed", f"its last validation has no {MEAN}")


def test_what_the_runs_do_not_report_is_told_before_training_with_what_they_do(store, scored):
    with pytest.raises(ConfigError) as refused:
        RUNNER.prepare(scored("mean(eval/piqa/acc, eval/sciq/acc, eval/piqa/f1)"))
    text = str(refused.value)
    assert "unknown metric eval/sciq/acc and eval/piqa/f1. Accepted: val/loss, " in text
    assert "eval/piqa/acc, eval/piqa/acc_norm, eval/winogrande/acc." in text
    assert "evaluation.tasks: piqa, winogrande" in text


def test_a_task_without_data_is_told_before_training(store, scored, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"questions of baber/piqa.*\n.*questions of allenai/winogrande"):
        RUNNER.prepare(scored(task_data=str(tmp_path / "empty")))


def test_a_mean_over_validation_sets_is_told_in_its_unit(spec, tiny_settings, tmp_path):
    (tmp_path / "wiki.txt").write_text("a river and a bank " * 40)
    (tmp_path / "text.txt").write_text("the cat sat on the mat " * 400)
    data = {"kind": "text", "files": str(tmp_path / "text.txt"), "seq_len": 16}
    data["val_sets"] = {"wiki": {"files": str(tmp_path / "wiki.txt")}}
    settings = {**tiny_settings, "data": data}
    losses = spec(experiment=settings, objective={"metric": "mean(val/loss, val/wiki/loss)"})
    RUNNER.prepare(losses)
    assert name_unit(losses) == "nats"
    assert label_metric(losses.objective.metric, losses) == "mean(val/loss, val/wiki/loss) (nats per token)"
    perplexities = spec(experiment=settings, objective={"metric": "mean(val/perplexity, val/wiki/perplexity)"})
    assert name_unit(perplexities) == "mean(val/perplexity, val/wiki/perplexity)"
    assert perplexities.objective.title == "mean(val/perplexity, val/wiki/perplexity)"
    with pytest.raises(
        ConfigError, match=r"unknown metric val/news/loss\. Accepted: .*val/wiki/loss.*Did you mean val/"
    ):
        RUNNER.prepare(spec(experiment=settings, objective={"metric": "mean(val/loss, val/news/loss)"}))
