"""Published figures are of what a run can have."""

import logging

import pytest
import yaml

from ablate.config.errors import ConfigError
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep

ARMS = {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}}
DATA = {"kind": "text", "files": "a.txt", "val_sets": {"wiki": {"files": "b.txt"}}}


def build_tree(*entries, **more):
    published = [{"source": "table 1", "values": {"pre": 3.0}, **entry} for entry in entries]
    tree = {"name": "t", "experiment": {"data": DATA}, "search": {"optimizer.lr": [1e-3, 1e-2]}, "arms": ARMS}
    return {**tree, "published": published, **more}


def refuse(*entries, **more):
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
    (first, mean), (second, one) = refuse(*entries)
    assert (first, second) == ("published.0.metric", "published.2.metric")
    assert mean.startswith("unknown metric foo. Accepted: val/loss, val/perplexity, ")
    assert one.startswith("unknown metric. Accepted: val/loss, ")
    assert one.endswith("Did you mean val/perplexity?")


@pytest.mark.parametrize("metric", ["val/accuracy", "val/news/loss", "val/ema/loss", "align/reward", "mean(foo, bar)"])
def test_a_metric_of_another_task_or_of_other_data_is_refused(metric):
    assert [path for path, _ in refuse({"metric": metric})] == ["published.0.metric"]


def test_what_the_arms_of_the_figures_report_is_accepted():
    assert Sweep.from_tree(build_tree({"metric": "mean(val/loss, val/wiki/loss)"}))
    arms = {**ARMS, "averaged": {"trainer.ema_decay": 0.9}}
    of_one = {"metric": "val/ema/loss", "values": {"averaged": 3.0}}
    assert Sweep.from_tree(build_tree(of_one, arms=arms, confounds=["trainer"]))
    (problem,) = refuse({**of_one, "values": {"averaged": 3.0, "mix": 2.0}}, arms=arms, confounds=["trainer"])
    assert problem[0] == "published.0.metric"


@pytest.mark.parametrize("metric", ["eval/piqa/acc", "eval/of_my_own/score", "mean(val/loss, eval/a/b/c)"])
def test_a_score_may_be_measured_after_training(metric):
    assert Sweep.from_tree(build_tree({"metric": metric}))


@pytest.mark.parametrize("metric", ["eval/acc", "eval/", "eval/piqa/", "eval//acc", "mean(val/loss, eval/acc)"])
def test_a_score_without_a_task_or_a_name_is_refused(metric):
    ((path, text),) = refuse({"metric": metric})
    assert path == "published.0.metric"
    assert text.endswith("A score on a downstream task is eval/TASK/NAME.")


def test_a_size_needs_a_file_with_sizes(load):
    expected = ("published.0.size", "the file has no sizes: remove it")
    assert refuse({"size": "71m"}) == [expected]
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
