"""The verdict in a line: what it says of several arms, of many, and before it is known."""

import io
import math
import re
from types import SimpleNamespace

import pytest
from rich.console import Console

from ablate.reports.labels import label_metric
from ablate.scheduler.progress import Display
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.verdict_summary import find_bounds, find_difference_bounds, is_open, name_unit, summarise_verdict
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate


def run(floors, trials=None, seeds=3, objective=None):
    import optuna

    spec = Sweep.from_tree(
        {
            "name": "told",
            "experiment": {"model": "llama", "data": "topics"},
            "arms": {arm: {"norm": {"kind": "mix", "alpha": 0.05 + 0.1 * i}} for i, arm in enumerate(floors)},
            "search": {"optimizer.lr": [1e-3, 1e-2]},
            "sampler": "grid",
            "confirm": {"seeds": seeds, "candidates": 1},
        }
    )
    return simulate(
        spec, objective or Valley(floors, shared=0.01, own=0.001), optuna.storages.InMemoryStorage(), trials
    )


def test_each_arm_is_told_with_its_difference():
    record = run({"pre": 2.1, "post": 2.5, "mix": 2.1})
    assert summarise_verdict(record).startswith("Verdict against pre: post worse (mean +0.3")
    assert "; mix inconclusive with 3 seeds (mean " in summarise_verdict(record)
    assert not is_open(record)


def test_the_failures_of_the_baseline_are_told_beside_those_of_the_arms():
    """post fails on all seeds and pre on all but one: nothing is said of post without that."""
    valley = Valley({"pre": 2.1, "post": 2.1}, shared=0.01, own=0.001)

    def fail(arm, params, seed):
        fresh = seed is not None and seed < 1000 and seed > 0
        return math.inf if fresh and (arm == "post" or seed > 1) else valley(arm, params, seed)

    record = run({"pre": 2.1, "post": 2.1}, objective=fail)
    text = summarise_verdict(record)
    assert text.startswith("Verdict against pre, which failed on 2 of 3 seeds: post ")


def test_many_arms_are_named_by_verdict():
    record = run({f"arm-{i}": 2.1 + 0.2 * (i > 3) for i in range(7)})
    text = summarise_verdict(record)
    assert text.startswith("Verdict against arm-0: 6 arms, n = 3. Worse: arm-4, arm-5 and arm-6; inconclusive")
    assert "±" not in text


def test_before_it_is_known_that_is_said():
    floors = {"pre": 2.1, "post": 2.5}
    assert summarise_verdict(run(floors, trials=4)) == "No verdict yet: no fresh seed has ended."
    some = run(floors, trials=6)
    assert summarise_verdict(some) == "No verdict yet against pre: 2 of 6 runs on fresh seeds have ended."
    assert is_open(some)
    assert summarise_verdict(run(floors, seeds=0)).startswith("No verdict: this sweep has no fresh seeds")


def test_a_log_has_a_line_where_a_verdict_changes_and_not_its_numbers():
    console = Console(file=io.StringIO(), width=200)
    with Display(console, "val/loss", 1) as display:
        for text in (
            "No verdict yet.",
            "Verdict so far: a worse (+0.1 ± 0.2).",
            "Verdict so far: a worse (+0.1 ± 0.1).",
        ):
            display.show_verdict(text)
        display.show_verdict("Verdict so far: a better (-0.1 ± 0.1).")
    assert [line.split(" (")[0] for line in console.file.getvalue().splitlines()] == [
        "Verdict so far: a worse",
        "Verdict so far: a better",
    ]


def test_a_difference_without_an_interval_is_no_number_and_failures_are_told():
    """post trained on one of three seeds; pre on all of them."""
    valley = Valley({"pre": 2.1, "post": 2.5}, shared=0.01, own=0.001)

    def fail(arm, params, seed):
        return math.inf if arm == "post" and seed is not None and 1 < seed < 1000 else valley(arm, params, seed)

    text = summarise_verdict(run({"pre": 2.1, "post": 2.5}, objective=fail))
    told = "post inconclusive with 3 seeds (no interval, n = 1; failed on 2 of 3 seeds)"
    assert text == f"Verdict against pre: {told}."
    known = run(
        {"pre": 2.1, "post": 2.5}, seeds=5, objective=lambda *point: fail(*point) if point[2] == 5 else valley(*point)
    )
    assert re.search(r"\(mean \+0\.\d+ ± 0\.\d+, n = 4; failed on 1 of 5 seeds\)\.$", summarise_verdict(known))


def test_the_verdict_is_the_last_line_of_a_log():
    console = Console(file=io.StringIO(), width=200)
    with Display(console, "val/loss", 1) as display:
        display.show_verdict("Verdict so far: a worse (+0.1 ± 0.2).")
        display.note("a seed 3 completed")
        display.show_verdict("Verdict so far: a worse (+0.1 ± 0.1).")
        display.close()
        display.close()
    assert console.file.getvalue().splitlines()[1:] == ["a seed 3 completed", "Verdict so far: a worse (+0.1 ± 0.1)."]


@pytest.mark.parametrize(
    ("metric", "bounds", "difference"),
    [
        ("val/loss", (0, float("inf")), (-float("inf"), float("inf"))),
        ("val/wiki/perplexity", (1, float("inf")), (-float("inf"), float("inf"))),
        ("val/accuracy", (0, 1), (-1, 1)),
        ("eval/piqa/acc", (0, 1), (-1, 1)),
        ("mean(val/accuracy, eval/rte/mcc)", (-0.5, 1), (-1.5, 1.5)),
        ("align/margin", (-float("inf"), float("inf")), (-float("inf"), float("inf"))),
    ],
)
def test_what_a_metric_can_be(metric, bounds, difference):
    own = SimpleNamespace(objective=SimpleNamespace(metric=metric), task="", is_own=True)
    assert find_bounds(own) == bounds
    assert find_difference_bounds(own) == difference
    other = SimpleNamespace(objective=SimpleNamespace(metric=metric), task="", is_own=False)  # may be in percent
    assert find_bounds(other) == (-float("inf"), float("inf"))
    assert name_unit(other) in (metric, f"({metric})")
    assert label_metric(metric, other) == metric
