"""The recorded curves, and a small run of `benchmarks/searchers.py`, which searches them."""

import csv
import importlib.util
import math
from collections import Counter
from pathlib import Path

import numpy as np
import optuna
import pytest

FILE = Path(__file__).parents[3] / "benchmarks" / "searchers.py"


@pytest.fixture(scope="module")
def searchers():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    spec = importlib.util.spec_from_file_location("searchers", FILE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "searchers", module)  # dataclasses look there
        spec.loader.exec_module(module)
        yield module
    optuna.logging.set_verbosity(before)


def test_the_record_is_whole(searchers):
    """Of each task, arm and seed 13 rates, each with how its run ended and the validations until then."""
    with searchers.FILE.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    runs = Counter((row["task"], row["arm"], row["seed"]) for row in rows if row["ending"])
    assert set(runs.values()) == {13}
    assert {(task, seed) for task, _, seed in runs} >= {(t, s) for t in ("language", "vision") for s in "012"}
    validations = Counter((row["task"], row["arm"], row["seed"], row["lr"]) for row in rows)
    trained = [row for row in rows if row["ending"] in ("trained", "stuck")]
    assert all(validations[row["task"], row["arm"], row["seed"], row["lr"]] == 8 for row in trained)
    assert searchers.FILE.stat().st_size < 1e6


def test_a_curve_is_linear_between_the_recorded_rates(searchers):
    logs = np.log([1e-4, 1e-3, 1e-2])
    curve = searchers.Curve("language", ("pre",), {"pre": np.array([[4.0, 2.0, 3.0], [4.0, 2.5, 2.0]])}, logs)
    between = {"optimizer.lr": math.sqrt(1e-3 * 1e-2)}
    assert curve.read(between, [0]) == pytest.approx(2.5)
    assert curve.read(between, [0, 1]) == pytest.approx((2.5 + 2.25) / 2)
    assert curve.measure_regret(between, [0]) == pytest.approx(0.5)
    assert curve.measure_regret({"optimizer.lr": 1e-2}, [1]) == 0


def test_a_search_never_gets_worse_and_asks_as_many_trials(searchers):
    curve = next(curve for curve in searchers.read_curves() if curve.arms == ("pre",))
    for workers in (1, 2):
        (points,) = searchers.run_searches(curve, 0, {"kind": "random"}, range(1), workers)
        course = searchers.judge(curve, 0, [points])
        assert len(points) == 24
        assert (np.diff(course.own) <= 0).all()
        assert course.own[-1] >= 0
    grid = searchers.search_grids(curve, 0)
    rates = np.linspace(math.log(1e-4), math.log(1e-1), 6)
    least = min(np.interp(rates, curve.logs, curve.losses["pre"][0]))
    assert grid.own[5] == pytest.approx(least - curve.losses["pre"][0].min(), abs=1e-4)
