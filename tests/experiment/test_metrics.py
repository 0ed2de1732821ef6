"""Metrics by name, and means of them: what they are called, what is known of them, and their values."""

import math
import random
import statistics

import pytest

from ablate.experiment import metrics
from ablate.experiment.metrics import (
    describe_metric,
    find_resolution,
    list_parts,
    name_in_mlflow,
    parse_metric,
    read_metric,
    shorten_metric,
)

SEVEN = "mean(" + ", ".join(f"eval/task{n}/acc_norm" for n in range(7)) + ")"


@pytest.mark.parametrize("text", ["mean(val/loss,val/wiki/loss)", " mean (val/loss , val/wiki/loss) "])
def test_a_mean_has_one_spelling(text):
    assert parse_metric(text) == "mean(val/loss, val/wiki/loss)"
    assert list_parts(parse_metric(text)) == ["val/loss", "val/wiki/loss"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("median(a, b)", r"unknown function median\(\.\.\.\): the only one is mean\(A, B, \.\.\.\)"),
        ("mean()", "is of no metric"),
        ("mean( , )", "is of no metric"),
        ("mean(a)", "a mean of one metric is that metric: write a"),
        ("mean(a,,b)", "a name is missing"),
        ("mean(a, mean(b, c))", "a mean within a mean"),
        ("mean(a, b, a)", "counts each metric once, and a stands there"),
        ("mean(a, b", "'mean\\(a, b' is not a metric"),
        ("a, b", "is not a metric"),
        ("mean(a, b) / 2", "is not a metric"),
    ],
)
def test_what_is_no_mean_is_told(text, said):
    with pytest.raises(ValueError, match=said):
        parse_metric(text)
    assert list_parts("val/loss") == ["val/loss"]


def test_a_mean_is_arithmetic_and_there_only_where_all_parts_are():
    losses = {"val/loss": 3.0, "val/wiki/loss": 4.0}
    values = {name.replace("loss", "perplexity"): math.exp(loss) for name, loss in losses.items()}
    both = read_metric(values, "mean(val/perplexity, val/wiki/perplexity)")
    assert both == pytest.approx((math.exp(3) + math.exp(4)) / 2)
    assert both != pytest.approx(math.exp(3.5))  # that of the mean loss
    assert read_metric(values, "val/perplexity") == math.exp(3)
    assert read_metric(values, "mean(val/perplexity, eval/piqa/acc)") is None
    assert read_metric(values, "val/loss") is None


def test_a_mean_has_what_its_parts_have_in_common():
    both = describe_metric("mean(val/loss, val/wiki/loss)")
    assert (both.unit, both.label, both.maximize, both.bounds) == ("nats", "nats per token", False, (0, math.inf))
    mixed = describe_metric("mean(val/loss, val/bits_per_byte)")
    assert (mixed.unit, mixed.label) == ("", "")
    assert describe_metric("mean(val/perplexity, val/bits_per_byte)").bounds == (0.5, math.inf)
    scores = describe_metric("mean(eval/piqa/acc, eval/rte/mcc)")
    assert (scores.maximize, scores.bounds, scores.counts_samples) == (True, (-0.5, 1.0), False)
    assert describe_metric("mean(val/loss, eval/piqa/unheard_of)") is None


def test_a_long_mean_is_named_by_its_parts_alone():
    assert shorten_metric(SEVEN) == "mean of 7 scores"
    assert shorten_metric(SEVEN.replace("eval/task0/acc_norm", "val/loss")) == "mean of 7 metrics"
    assert shorten_metric("mean(val/loss, val/wiki/loss)") == "mean(val/loss, val/wiki/loss)"
    assert shorten_metric("val/" + "a" * 60) == "val/" + "a" * 60
    assert [name_in_mlflow(name) for name in ("val/loss", SEVEN)] == ["val/loss", "objective"]


def test_the_resolution_of_a_mean_has_the_variance_of_its_rounding():
    """Against scores of 3, 5 and 40 questions whose true values are drawn at random."""
    counts = {"eval/a/acc": 3, "eval/b/acc": 5, "eval/c/acc": 40}
    drawn = random.Random(0)
    errors = []
    for _ in range(20_000):
        true = [drawn.random() for _ in counts]
        rounded = [round(value * n) / n for value, n in zip(true, counts.values(), strict=True)]
        errors.append(statistics.fmean(rounded) - statistics.fmean(true))
    expected = statistics.pstdev(errors) * math.sqrt(12)
    assert find_resolution(f"mean({', '.join(counts)})", counts, None) == pytest.approx(expected, rel=0.02)
    assert find_resolution("eval/b/acc", counts, 7) == pytest.approx(1 / 5)
    assert find_resolution("val/accuracy", {}, 250) == pytest.approx(1 / 250)
    assert find_resolution("mean(val/loss, eval/a/acc)", counts, 250) == pytest.approx(1 / 6)
    assert find_resolution("eval/unknown/acc", counts, 250) == 0


def test_scores_have_the_direction_that_the_harness_gives_them():
    registry = pytest.importorskip("lm_eval.api.registry")
    assert {name: metric.maximize for name, metric in metrics.SCORES.items()} == {
        name: registry.is_higher_better(name) for name in metrics.SCORES
    }
