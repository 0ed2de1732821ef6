"""What other settings promise, against the formulas written out by hand and against valleys with a known truth."""

import math

import numpy as np
import pytest

from ablate.verdict.outcomes import Outcome
from ablate.verdict.valley import _DEPARTURE, _SMOOTH, Noise, list_rivals

SEEDS = [0, 1, 2]


def run(truth, places, seeds=SEEDS, sd=0.01, entropy=0, shared=1.0):
    """Place -> seed -> outcome of a truth with an effect of each seed and a noise of each run."""
    random = np.random.default_rng(entropy)
    common = {seed: shared * random.normal() for seed in seeds}
    return {
        place: {seed: Outcome("trained", truth(*place) + common[seed] + sd * random.normal()) for seed in seeds}
        for place in [tuple(np.atleast_1d(place).astype(float)) for place in places]
    }


def find(rivals, *place):
    return next(one for one in rivals if one.place == pytest.approx(place))


def bowl(x, best=0.0, curvature=0.1):
    return 2.0 + curvature * (x - best) ** 2


def test_a_gain_and_its_variance_are_those_of_a_normal_model_written_out():
    """The seeds' effects and the quadratic have a flat prior, here a very wide one; the departure is a process."""
    runs = run(bowl, [-2, -1, -0.5, 0, 1, 2], entropy=3)
    rivals = list_rivals(runs, (0.0,), [(-2.0, 2.0)], SEEDS)
    values = np.array([[own[seed].value for seed in SEEDS] for own in runs.values()])
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    noise = (rest**2).sum() / ((6 - 1) * (3 - 1))
    xs = np.array([place[0] for place in runs])
    x, seed = np.repeat(xs, 3), np.tile(SEEDS, 6)
    y = values.reshape(-1)
    blocks = np.eye(3)[seed]
    curvature = np.linalg.lstsq(np.column_stack([blocks, x, x**2]), y, rcond=None)[0][-1]
    wanted = np.array([0.5, -1.0, 1.5])

    def correlate(a, b):
        return (_DEPARTURE * curvature) ** 2 * np.exp(-((a[:, None] - b[None]) ** 2) / (2 * _SMOOTH**2))

    def wide(a, b):
        return 1e6 * (np.outer(a, b) + np.outer(a**2, b**2)) + correlate(a, b)

    prior = wide(x, x) + 1e6 * blocks @ blocks.T + noise * np.eye(len(x))
    zero = np.zeros(1)
    ahead = wide(wanted, x) - wide(zero, x)
    own = wide(wanted, wanted) - wide(wanted, zero) - wide(zero, wanted) + wide(zero, zero)
    gains = -ahead @ np.linalg.solve(prior, y - 0.0)
    misfit = y @ np.linalg.solve(prior, y) / (len(y) - 3 - 2)  # seeds, slope and curvature fit themselves
    assert misfit > 1
    variances = misfit * np.diag(own - ahead @ np.linalg.solve(prior, ahead.T))
    for place, gain, variance in zip(wanted, gains, variances, strict=True):
        rival = find(rivals, place)
        assert rival.gain == pytest.approx(gain, abs=2e-4)
        assert math.sqrt(rival.variance) == pytest.approx(math.sqrt(variance), rel=2e-2)
        assert rival.freedom == 10
    assert {rival.place[0] for rival in rivals if rival.tried} == {-2.0, -1.0, -0.5, 1.0, 2.0}


@pytest.mark.parametrize("parameters", [1, 2, 3])
def test_the_best_of_a_steep_valley_between_two_places_is_found(parameters):
    """At 0.2 of a step off in each direction; 0.0625, half of the finest distance, may be left in each."""
    best = np.full(parameters, 0.2)

    def valley(*place):
        return 2.0 + ((np.array(place) - best) ** 2).sum()

    random = np.random.default_rng(1)
    places = [(0.0,) * parameters, *map(tuple, random.uniform(-2, 2, (30, parameters)))]
    rivals = list_rivals(run(valley, places, sd=1e-4), (0.0,) * parameters, [(-2.0, 2.0)] * parameters, SEEDS)
    found = max((one for one in rivals if not one.tried), key=lambda one: one.gain)
    assert valley(*found.place) - 2.0 <= parameters * 0.0625**2 + 1e-9
    assert found.gain == pytest.approx(valley(*(0.0,) * parameters) - valley(*found.place), abs=0.005)


@pytest.mark.parametrize("maximize", [False, True])
def test_the_best_of_a_valley_is_promised_its_gain(maximize):
    sign = -1 if maximize else 1
    runs = run(lambda x: sign * bowl(x, 0.5), [-2, -1, 0, 1, 2], sd=1e-4)
    rivals = list_rivals(runs, (0.0,), [(-2.0, 3.0)], SEEDS, maximize)
    best = max(rivals, key=lambda rival: rival.gain)
    assert best.place == (0.5,)
    assert best.gain == pytest.approx(0.025, rel=0.05)
    assert all(-2 <= rival.place[0] <= 2 for rival in rivals)  # two steps from the chosen one


def test_the_surface_reaches_around_a_tried_rival_that_is_clearly_better():
    runs = run(lambda x: bowl(x - 4), [-2, -1, 0, 2], sd=1e-4)
    at = {rival.place: rival for rival in list_rivals(runs, (0.0,), [(-2.0, 6.0)], SEEDS)}
    assert at[4.0,].gain == pytest.approx(bowl(-4) - bowl(0), rel=0.05)
    worse = list_rivals(run(bowl, [-2, -1, 0, 2], sd=1e-4), (0.0,), [(-2.0, 6.0)], SEEDS)
    assert max(rival.place for rival in worse) == (2.0,)


def test_two_parameters_that_work_together():
    def truth(x, y):
        return 0.1 * (x - 0.5) ** 2 + 0.1 * (y + 0.5) ** 2 + 0.1 * (x - 0.5) * (y + 0.5)

    places = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)]
    rivals = list_rivals(run(truth, places, sd=1e-4), (0.0, 0.0), [(-2.0, 2.0)] * 2, SEEDS)
    assert max(rivals, key=lambda rival: rival.gain).place == (0.5, -0.5)
    assert find(rivals, 0.5, -0.5).gain == pytest.approx(truth(0, 0), rel=0.1)


def test_nothing_is_known_where_nothing_was_run():
    along = list_rivals(run(lambda x, y: bowl(x), [(-1, 0), (0, 0), (1, 0)]), (0.0, 0.0), [(-2.0, 2.0)] * 2, SEEDS)
    assert all(math.isinf(rival.variance) == (rival.place[1] != 0) for rival in along)
    two = list_rivals(run(bowl, [0, 1]), (0.0,), [(-2.0, 2.0)], SEEDS)  # no curvature
    assert all(math.isinf(rival.variance) for rival in two if not rival.tried)
    one = list_rivals(run(bowl, [-1, 0, 1], seeds=[0]), (0.0,), [(-2.0, 2.0)], SEEDS)  # no noise is known
    assert all(math.isinf(rival.variance) for rival in one)
    assert not any(rival.tried for rival in one)


def test_noise_that_is_low_by_chance_is_raised_to_what_was_measured():
    runs = run(bowl, [-2, -1, 0, 1, 2], sd=1e-3)
    plain = find(list_rivals(runs, (0.0,), [(-2.0, 2.0)], SEEDS), 1)
    raised = find(list_rivals(runs, (0.0,), [(-2.0, 2.0)], SEEDS, noise=Noise(1e-2, 9.0)), 1)
    assert (plain.freedom, raised.freedom) == (8, 9)
    assert raised.variance > 100 * plain.variance
    assert find(list_rivals(runs, (0.0,), [(-2.0, 2.0)], SEEDS, noise=Noise(1e-9, 9.0)), 1) == plain


def test_an_outlier_makes_the_surface_less_certain():
    runs = run(bowl, [-2, -1, 0, 1, 2])
    far = {**runs, (1.5,): {SEEDS[0]: Outcome("trained", 5.0)}}
    plain, less = (find(list_rivals(own, (0.0,), [(-2.0, 2.0)], SEEDS), -0.5) for own in (runs, far))
    assert less.variance > 100 * plain.variance


def test_settings_that_failed_are_no_rivals_and_what_is_far_speaks_for_itself():
    runs = run(bowl, [-1, 0, 1, 5], sd=0.01)
    runs[(1.5,)] = {0: Outcome("diverged"), 1: Outcome("trained", 0.0)}
    rivals = list_rivals(runs, (0.0,), [(-2.0, 6.0)], SEEDS)
    assert not any(rival.place == (1.5,) for rival in rivals)
    far = find(rivals, 5.0)
    gains = [runs[(0.0,)][seed].value - runs[(5.0,)][seed].value for seed in SEEDS]
    assert far.gain == pytest.approx(sum(gains) / 3)
    assert far.tried


def test_of_many_parameters_one_is_moved_at_a_time():
    places = [tuple(float(i == j) * s for j in range(5)) for i in range(5) for s in (-1, 1)] + [(0.0,) * 5]
    rivals = list_rivals(run(lambda *x: sum(v * v for v in x), places), (0.0,) * 5, [(-2.0, 2.0)] * 5, SEEDS)
    assert all(sum(v != 0 for v in rival.place) == 1 for rival in rivals)


def test_a_run_far_behind_others_of_the_same_settings_is_set_aside_in_a_second_reading():
    runs = run(lambda x: bowl(x, best=1.0), [-1, 0, 1, 2, 3])
    noise = Noise(1e-4, 9.0, 0.1)
    assert not any(rival.typical for rival in list_rivals(runs, (0.0,), [(-2.0, 4.0)], SEEDS, noise=noise))
    runs[1.0,] = {**runs[1.0,], 2: Outcome("trained", runs[1.0,][2].value + 5)}
    found = list_rivals(runs, (0.0,), [(-2.0, 4.0)], SEEDS, noise=noise)
    all_runs, typical = ([one for one in found if one.typical is kind] for kind in (False, True))
    assert find(all_runs, 1.0).gain < 0
    assert find(typical, 1.0).gain == pytest.approx(0.1, abs=0.03)
    assert find(typical, 1.0).tried
    unknown = list_rivals(runs, (0.0,), [(-2.0, 4.0)], SEEDS)  # what is typical
    assert not any(one.typical for one in unknown)
    known = find(typical, 1.0).variance
    del runs[1.0,][0], runs[1.0,][1]  # the only run there: between two that are as good as it should be, it is a hill
    alone = [one for one in list_rivals(runs, (0.0,), [(-2.0, 4.0)], SEEDS, noise=noise) if one.typical]
    assert find(alone, 1.0).gain == pytest.approx(0.1, abs=0.05)
    assert find(alone, 1.0).variance > known


@pytest.mark.parametrize("wall", [lambda x: 3.0 * x * x, lambda x: math.exp(2 * abs(x)), lambda x: 9.0 * (x > 0)])
def test_a_valley_has_no_hill_however_steep_it_is(wall):
    runs = run(wall, [-2, -1, 0, 1, 2])
    assert not any(one.typical for one in list_rivals(runs, (0.0,), [(-2.0, 2.0)], SEEDS, noise=Noise(1e-4, 9, 0.1)))
    plane = run(lambda x, y: wall(x) + wall(y), [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1)])
    bounds = [(-2.0, 2.0)] * 2
    assert not any(one.typical for one in list_rivals(plane, (0.0, 0.0), bounds, SEEDS, noise=Noise(1e-4, 9, 0.1)))
