"""The objective and published figures: what is refused, and what a plan says of them."""

from __future__ import annotations

import logging

import pytest
import yaml

from ablate.config.errors import ConfigError
from ablate.scheduler.dry_run import outline
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep

SCORE = "eval/piqa/acc_norm"
STAGES = """
name: s
experiment: {norm: pre, trainer.ema_decay: 0.9}
search: {optimizer.lr: [1.0e-3, 1.0e-2]}
sampler: grid
stages:
  first: {objective: {metric: mean(val/loss, val/ema/loss)}}
  second: {objective: {metric: mean(eval/piqa/acc_norm, eval/sciq/acc)}, evaluation.tasks: [piqa, sciq]}
"""


def build(metric, objective=None, evaluation=None, **more):
    trainer = {"max_steps": 100, "val_check_interval": 20}
    tree = {"evaluation": {"tasks": ["piqa"], **(evaluation or {})}, "trainer": trainer}
    objective = {"metric": metric, **(objective or {})}
    search = {"optimizer.lr": [1e-3, 1e-2]}
    return Sweep.from_tree({"name": "s", "experiment": tree, "search": search, "objective": objective, **more})


def refuse(*given, **more):
    with pytest.raises(ConfigError) as refused:
        build(*given, **more)
    (problem,) = refused.value.problems
    return problem.path, problem.message


def test_a_mean_of_opposite_directions_is_refused_whatever_direction_is_given():
    for objective in ({}, {"direction": "minimize"}, {"direction": "maximize"}):
        path, text = refuse("mean(val/loss, eval/piqa/acc, val/perplexity)", objective)
        assert path == "objective.metric"
        assert "more of eval/piqa/acc is better, and less of val/loss and val/perplexity" in text


def test_a_mean_in_which_the_largest_numbers_decide_alone_is_refused():
    path, text = refuse("mean(val/loss, val/perplexity)")
    assert path == "objective.metric"
    assert "val/loss (nats per token) and val/perplexity (per token): the one with the largest numbers" in text
    assert build(f"mean({SCORE}, eval/squad/f1)").objective.direction == "maximize"  # both from 0 to 1


def test_the_worst_mean_cannot_win():
    assert refuse(f"mean({SCORE}, eval/piqa/acc)", {"direction": "minimize"})[0] == "objective.direction"


def test_the_direction_of_a_score_that_is_not_known_must_be_given():
    path, text = refuse("eval/piqa/of_my_own")
    assert path == "objective.direction"
    assert "is required" in text
    assert refuse(f"mean({SCORE}, eval/piqa/acc_nrom)")[1].endswith("Did you mean acc_norm?")
    assert build("eval/piqa/of_my_own", {"direction": "maximize"}).objective.direction == "maximize"
    mixed = build(f"mean({SCORE}, eval/piqa/of_my_own)", {"direction": "maximize"})
    assert mixed.objective.direction == "maximize"


@pytest.mark.parametrize("where", ["objective", "published"])
def test_what_is_no_mean_is_told_where_it_stands(where):
    published = [{"source": "x", "metric": "median(a, b)", "values": {"all": 1.0}}]
    more = {"published": published} if where == "published" else {}
    path, text = refuse(SCORE if more else "median(a, b)", **more)
    assert path == {"objective": "objective.metric", "published": "published.0.metric"}[where]
    assert text == "unknown function median(...): the only one is mean(A, B, ...)"


def test_stages_and_the_command_line_take_a_mean(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text(STAGES)
    first, second = load_sweeps(file)
    assert first.objective.metric == "mean(val/loss, val/ema/loss)"
    assert (second.objective.metric, second.objective.direction) == (f"mean({SCORE}, eval/sciq/acc)", "maximize")
    changed = load_sweeps(file, {"stages.first.objective.metric": "mean(val/ema/loss,val/loss)"})
    assert changed[0].objective.metric == "mean(val/ema/loss, val/loss)"


@pytest.mark.parametrize(
    ("every", "read"), [(20, "every 20 updates"), (10, "every 20 updates"), (30, "every 60 updates"), (None, "after")]
)
def test_the_plan_says_when_scores_are_read(every, read):
    assert f"objective  read {read}" in outline(build(SCORE, evaluation={"every_n_steps": every}))
    assert "objective  read" not in outline(build("val/loss", evaluation={"every_n_steps": every}))


def test_scores_that_are_never_there_at_a_validation_are_told_with_what_to_set():
    path, text = refuse(SCORE, evaluation={"every_n_steps": 33})
    assert path == "experiment.evaluation.every_n_steps"
    assert "Set it to 20, or trainer.val_check_interval to 33" in text
    assert build("val/loss", evaluation={"every_n_steps": 33})


def test_a_pruner_needs_scores_before_the_end():
    path, text = refuse(f"mean({SCORE}, eval/piqa/acc)", pruner="median")
    assert path == "experiment.evaluation.every_n_steps"
    assert "the pruner median needs the objective before the end: set it to 20" in text
    assert build(SCORE, evaluation={"every_n_steps": 20}, pruner="median")


ARMS = {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}}
DATA = {"kind": "text", "files": "a.txt", "val_sets": {"wiki": {"files": "b.txt"}}}


def build_tree(*entries, **more):
    published = [{"source": "table 1", "values": {"pre": 3.0}, **entry} for entry in entries]
    tree = {"name": "t", "experiment": {"data": DATA}, "search": {"optimizer.lr": [1e-3, 1e-2]}, "arms": ARMS}
    return {**tree, "published": published, **more}


def refuse_published(*entries, **more):
    with pytest.raises(ConfigError) as refused:
        Sweep.from_tree(build_tree(*entries, **more))
    return [(problem.path, problem.message) for problem in refused.value.problems]


@pytest.fixture
def load(tmp_path):
    def write(tree, *overrides):
        file = tmp_path / "t.yaml"
        file.write_text(yaml.safe_dump(tree, sort_keys=False))
        return load_sweeps(file, *overrides)

    return write


def test_a_metric_that_no_run_of_the_sweep_reports_is_refused():
    entries = {"metric": "mean(val/loss, foo)"}, {"metric": "val/perplexity"}, {"metric": "val/perplexty"}
    (first, mean), (second, one) = refuse_published(*entries)
    assert (first, second) == ("published.0.metric", "published.2.metric")
    assert mean.startswith("unknown metric foo. Accepted: val/loss, val/perplexity, ")
    assert one.startswith("unknown metric. Accepted: val/loss, ")
    assert one.endswith("Did you mean val/perplexity?")


@pytest.mark.parametrize("metric", ["val/accuracy", "val/news/loss", "val/ema/loss", "align/reward", "mean(foo, bar)"])
def test_a_metric_of_another_task_or_of_other_data_is_refused(metric):
    assert [path for path, _ in refuse_published({"metric": metric})] == ["published.0.metric"]


def test_what_the_arms_of_the_figures_report_is_accepted():
    assert Sweep.from_tree(build_tree({"metric": "mean(val/loss, val/wiki/loss)"}))
    arms = {**ARMS, "averaged": {"trainer.ema_decay": 0.9}}
    of_one = {"metric": "val/ema/loss", "values": {"averaged": 3.0}}
    assert Sweep.from_tree(build_tree(of_one, arms=arms, confounds=["trainer"]))
    (problem,) = refuse_published({**of_one, "values": {"averaged": 3.0, "mix": 2.0}}, arms=arms, confounds=["trainer"])
    assert problem[0] == "published.0.metric"


@pytest.mark.parametrize("metric", ["eval/piqa/acc", "eval/of_my_own/score", "mean(val/loss, eval/a/b/c)"])
def test_a_score_may_be_measured_after_training(metric):
    assert Sweep.from_tree(build_tree({"metric": metric}))


@pytest.mark.parametrize("metric", ["eval/acc", "eval/", "eval/piqa/", "eval//acc", "mean(val/loss, eval/acc)"])
def test_a_score_without_a_task_or_a_name_is_refused(metric):
    ((path, text),) = refuse_published({"metric": metric})
    assert path == "published.0.metric"
    assert text.endswith("A score on a downstream task is eval/TASK/NAME.")


def test_a_size_needs_a_file_with_sizes(load):
    expected = ("published.0.size", "the file has no sizes: remove it")
    assert refuse_published({"size": "71m"}) == [expected]
    stages = {"first": None, "second": None}
    with pytest.raises(ConfigError, match=r"published\.0\.size: the file has no sizes"):
        load(build_tree({"size": "first"}, stages=stages))


def test_settings_of_the_command_line_that_change_the_metrics_leave_the_figures_out(load, caplog):
    """Only the file can change figures, so a rehearsal on other data must not be refused for them."""
    tree = build_tree({"metric": "val/wiki/loss", "source": "table 7"}, {"metric": "val/loss"})
    with caplog.at_level(logging.WARNING):
        (spec,) = load(tree, {"data": "topics"})
    assert [entry.metric for entry in spec.published] == ["val/loss"]
    assert "table 7 is left out: with these settings no run reports val/wiki/loss" in caplog.text
    (same,) = load(tree, {"trainer.batch_size": 8})
    assert len(same.published) == 2
    with pytest.raises(ConfigError, match=r"published\.2\.metric: unknown metric foo"):
        load({**tree, "published": [*tree["published"], {**tree["published"][0], "metric": "mean(val/loss, foo)"}]},
             {"trainer.batch_size": 8})  # fmt: skip
