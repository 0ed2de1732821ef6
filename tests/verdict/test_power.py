"""What seeds can show, against simulation and scipy's noncentral t."""

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.looks import Looks, nominal_levels, plan_looks
from ablate.verdict.power import (
    count_failures_needed,
    count_seeds,
    exclude_failures,
    find_power,
    find_smallest_difference,
)


@pytest.mark.parametrize(("shift", "n", "level"), [(1.0, 5, 0.04), (2.0, 3, 0.01), (0.3, 40, 0.05), (20.0, 3, 0.0005)])
def test_power_is_that_of_the_noncentral_t(shift, n, level):
    limit, mean = stats.t.ppf(1 - level / 2, n - 1), shift * np.sqrt(n)
    expected = stats.nct.sf(limit, n - 1, mean) + stats.nct.cdf(-limit, n - 1, mean)
    assert find_power(shift, n, level) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(
    ("looks", "comparisons"), [(plan_looks(5, 5), 1), (plan_looks(3, 3), 3), (plan_looks(3, 12), 2)]
)
def test_the_smallest_difference_is_found_in_80_of_100(looks, comparisons):
    smallest, n = find_smallest_difference(0.02, looks, comparisons), looks.sizes[-1]
    x = np.random.default_rng(2).normal(smallest, 0.02, (100_000, n))
    level = nominal_levels(looks, 0.05 / comparisons)[-1]
    assert (stats.ttest_1samp(x, 0, axis=1).pvalue < level).mean() == pytest.approx(0.8, abs=0.006)
    assert find_smallest_difference(1.0, looks, 7) > find_smallest_difference(1.0, looks, 1)
    assert find_smallest_difference(1.0, Looks((2,), 2)) is None


@pytest.mark.parametrize(
    ("sd", "effect", "comparisons"), [(1.0, 1.0, 1), (0.02, 0.01, 1), (1.0, 0.8, 4), (1.0, 9.0, 1)]
)
def test_the_number_of_seeds_is_the_first_with_the_power(sd, effect, comparisons):
    n = count_seeds(sd, effect, comparisons)
    assert find_power(effect / sd, n, 0.04 / comparisons) >= 0.799
    assert n == 3 or find_power(effect / sd, n - 1, 0.04 / comparisons) < 0.801
    assert count_seeds(0.0, effect) == 3
    assert count_seeds(1.0, 1e-9) is None
    for bad in ((1.0, 0.0), (1.0, -1.0), (np.nan, 1.0), (-1.0, 1.0)):
        with pytest.raises(ValueError, match="above 0"):
            count_seeds(*bad)


def test_failures():
    assert exclude_failures(3) == pytest.approx(0.6316, abs=1e-4)
    assert (1 - exclude_failures(12)) ** 12 == pytest.approx(0.05)
    assert [count_failures_needed(k) for k in (1, 2, 3)] == [6, 7, 8]  # 2 * 0.5^d <= 0.04 / k
