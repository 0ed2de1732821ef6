"""Ranges and grids: what they are in Optuna's hands."""

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import ValidationError

from ablate.scheduler.samplers import to_distributions
from ablate.sweeps.search.space import Range, list_cells

LR = Range(low=1e-4, high=1e-2, log=True)
ALPHA = Range(low=0.1, high=0.5)
SPACE = {"optimizer.lr": LR, "norm.alpha": ALPHA}


# ---------------------------------------------------------------------------------------------------- ranges


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"low": 1e-4, "high": 1e-2, "log": True}, FloatDistribution(1e-4, 1e-2, log=True)),
        ({"low": 0.1, "high": 0.5}, FloatDistribution(0.1, 0.5)),
        ({"low": 0, "high": 8}, IntDistribution(0, 8)),
        ({"low": 1, "high": 64, "log": True}, IntDistribution(1, 64, log=True)),
        ({"low": 0, "high": 1.0}, FloatDistribution(0.0, 1.0)),
        ({"low": 0.0, "high": 1}, FloatDistribution(0.0, 1.0)),
        ({"low": 1e-4, "high": 1e-2, "log": True, "num": 5}, FloatDistribution(1e-4, 1e-2, log=True)),
    ],
)
def test_a_range_in_optunas_words(fields, expected):
    assert to_distributions({"x": Range(**fields)}) == {"x": expected}


def test_a_list_in_optunas_words():
    assert to_distributions({"norm": ["pre", "post"]}) == {"norm": CategoricalDistribution(("pre", "post"))}


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        ({"low": 0.1, "high": 0.5, "num": 3}, [0.1, 0.3, 0.5]),
        ({"low": 1e-4, "high": 1e-1, "log": True, "num": 4}, [1e-4, 1e-3, 1e-2, 1e-1]),
        ({"low": 1e-3, "high": 4e-3, "log": True, "num": 3}, [1e-3, 2e-3, 4e-3]),
        ({"low": 1, "high": 4}, [1, 2, 3, 4]),
        ({"low": 1, "high": 8, "log": True, "num": 4}, [1, 2, 4, 8]),
        ({"low": 1, "high": 3, "num": 9}, [1, 2, 3]),
        ({"low": 0.0, "high": 1.0, "num": 2}, [0.0, 1.0]),
    ],
)
def test_the_values_of_a_grid(fields, values):
    entry = Range(**fields)
    found = entry.grid()
    assert found == pytest.approx(values, rel=1e-6, abs=1e-12)
    assert all(type(v) is (int if entry.whole else float) for v in found)
    assert (found[0], found[-1]) == (values[0], values[-1])


def test_without_num_a_range_of_numbers_is_no_grid():
    with pytest.raises(ValueError, match="a grid needs a list of values, or num in addition"):
        ALPHA.grid()


def test_cells_are_every_combination():
    space = {"norm": ["pre", "post"], "norm.alpha": Range(low=0.0, high=1.0, num=3), "seed": [3]}
    found = list_cells(space)
    assert len(found) == 6
    assert {tuple(cell) for cell in found} == {("norm", "norm.alpha", "seed")}
    assert {tuple(cell.values()) for cell in found} == {(n, a, 3) for n in ("pre", "post") for a in (0.0, 0.5, 1.0)}
    assert list_cells({}) == [{}]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 1, "high": 1}, r"low \(1\) must be below high \(1\)"),
        ({"low": 2, "high": 1}, r"low \(2\) must be below high \(1\)"),
        ({"low": 0, "high": 1, "log": True}, r"low \(0\) must be above 0 if log is true"),
        ({"low": 1, "high": 9, "num": 1}, "greater than or equal to 2"),
        ({"low": 1}, "Field required"),
        ({"low": "a", "high": 2}, "valid"),
        ({"low": 1, "high": float("inf")}, "finite"),
        ({"low": 1, "high": 2, "lgo": True}, "Extra inputs"),
    ],
)
def test_what_a_range_refuses(fields, message):
    with pytest.raises(ValidationError, match=message):
        Range(**fields)
