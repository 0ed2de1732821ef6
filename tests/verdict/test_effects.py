"""Effects of a factorial by the formulas written out by hand, and what is said where seeds of some cells failed."""

import math
import statistics

import numpy as np
import pytest
from scipy import stats

from ablate.verdict.comparison import FreshOutcomes
from ablate.verdict.effects import Contrast, Level, compare_cells
from ablate.verdict.looks import Looks, nominal_levels
from ablate.verdict.outcomes import Outcome
from ablate.verdict.statements import state_effects, summarise_effects
from ablate.verdict.valley import Rival, Valley

A, B = Level("a", "1", "0", "a"), Level("b", "1", "0", "b")
MAIN_A = Contrast((A,), {"00": -0.5, "01": -0.5, "10": 0.5, "11": 0.5})
MAIN_B = Contrast((B,), {"00": -0.5, "01": 0.5, "10": -0.5, "11": 0.5})
BOTH = Contrast((A, B), {"00": 1.0, "01": -1.0, "10": -1.0, "11": 1.0})
CONTRASTS = {contrast.name: contrast for contrast in (MAIN_A, MAIN_B, BOTH)}
BAD = math.inf


def cell(values, looks=(), **more):
    outcomes = {
        seed: Outcome("diverged") if value == BAD else Outcome("trained", float(value))
        for seed, value in enumerate(values, 1)
    }
    sizes = tuple(looks) or (len(values),)
    return FreshOutcomes(outcomes, {}, Looks(sizes, sizes[-1]), **more)


def draw(seeds=6, effects=(0.0, 0.0, 0.0), sd=0.01, entropy=0):
    """Cell -> values: a part of the seed that all cells share, and a part of each run's own."""
    random = np.random.default_rng(entropy)
    shared = random.normal(0, 1.0, seeds)
    a, b, both = effects
    means = {"00": 0.0, "01": b, "10": a, "11": a + b + both}
    return {name: list(2.0 + shared + mean + random.normal(0, sd, seeds)) for name, mean in means.items()}


def compare(cells, seeds=6, **more):
    return compare_cells(CONTRASTS, cells, planned=seeds, **more)


def test_each_effect_is_the_mean_over_seeds_of_what_is_written_out_here():
    values = {name: np.array(own) for name, own in draw(effects=(-0.1, 0.05, 0.02)).items()}
    effects = compare({name: cell(own) for name, own in values.items()}, effect=0.5)
    a = ((values["10"] - values["00"]) + (values["11"] - values["01"])) / 2
    b = ((values["01"] - values["00"]) + (values["11"] - values["10"])) / 2
    both = (values["11"] - values["01"]) - (values["10"] - values["00"])
    level = nominal_levels(Looks((6,), 6), 0.05 / 3)[0]
    assert level == pytest.approx(0.8 * 0.05 / 3, rel=1e-2)
    for name, each in zip(CONTRASTS, (a, b, both), strict=True):
        d = effects[name].versus.difference
        assert d.mean == pytest.approx(each.mean(), abs=1e-12)
        width = stats.t.ppf(1 - level / 2, 5) * each.std(ddof=1) / math.sqrt(6)
        assert d.half_width == pytest.approx(width)
        assert effects[name].family == 3
        assert effects[name].versus.seeds == 6
        assert effects[name].runs == 12
    assert effects["a=1"].kind == "better"
    assert effects["b=1"].kind == "worse"
    assert compare({name: cell(own) for name, own in values.items()}, maximize=True)["a=1"].kind == "worse"


def test_the_share_of_the_standard_deviation_is_what_independent_cells_give():
    random = np.random.default_rng(0).normal(size=(4, 200_000))
    values = dict(zip(("00", "01", "10", "11"), random, strict=True))
    one = statistics.stdev(values["10"] - values["00"])
    for contrast in CONTRASTS.values():
        total = sum(weight * values[name] for name, weight in contrast.weights.items())
        assert total.std() / one == pytest.approx(contrast.sd_share, rel=0.02)


def test_interactions_are_told_apart_from_what_adds_up():
    found = compare({name: cell(own) for name, own in draw(effects=(-0.1, -0.1, -0.2), entropy=1).items()}, effect=0.05)
    assert found["a=1 x b=1"].kind == "better together"
    text = state_effects(found, unit="nats")
    assert (
        "a=1 and b=1 are better together than the sum of their effects on a typical seed; mean difference 0.206" in text
    )
    assert "As a=1 and b=1 interact, each one's main effect is a mean over effects that differ." in text
    assert "covers 3 comparisons and every look: 1 look at 6 seeds, as planned." in text
    worse = compare({name: cell(own) for name, own in draw(effects=(-0.1, -0.1, 0.2), entropy=1).items()})
    assert worse["a=1 x b=1"].kind == "worse together"
    added = compare({name: cell(own) for name, own in draw(effects=(-0.1, -0.1, 0.0), entropy=1).items()}, effect=0.05)
    assert added["a=1 x b=1"].kind == "additive"
    assert added["a=1 x b=1"].name_kind() == "additive within 0.05"
    same = compare({name: cell(own) for name, own in draw(entropy=1).items()}, effect=0.05)
    assert {effect.kind for effect in same.values()} == {"equivalent", "additive"}
    told = state_effects(same, unit="nats")
    assert (
        "differ by less than the 0.05 nats that matter on a typical seed; the interval of the mean difference is -0.0"
        in told
    )
    assert "on average not shown" not in told
    assert summarise_effects(same, "nats").startswith("Main effects: equivalent within 0.05: a=1 against a=0 (")
    values = draw(10, effects=(-0.1, -0.1, -0.2), entropy=1)
    values["11"][4] += 5.0
    tail = compare({name: cell(own) for name, own in values.items()}, seeds=10)
    assert tail["a=1"].kind == tail["a=1 x b=1"].kind == "undecided"  # 9 of 10 seeds, of three comparisons
    values = {name: [*own, *draw(6, effects=(-0.1, -0.1, -0.2), entropy=2)[name]] for name, own in values.items()}
    tail = compare({name: cell(own) for name, own in values.items()}, seeds=16)
    assert tail["a=1 x b=1"].kind == "better together on most seeds"
    text = state_effects(tail, unit="nats")
    assert "are better together than the sum of their effects on 15 of 16 seeds; on average not shown, as a" in text
    assert "a=1 is better than a=0 on 15 of 16 seeds; on average not shown" in text


def test_a_seed_that_failed_in_one_cell_is_left_out_and_counted():
    values = draw(8, effects=(-0.1, 0.0, 0.0))
    values["10"][2] = values["01"][4] = values["01"][5] = BAD
    effects = compare({name: cell(own) for name, own in values.items()}, seeds=8)
    whole = [i for i in range(8) if all(values[name][i] != BAD for name in values)]
    a = [((values["10"][i] - values["00"][i]) + (values["11"][i] - values["01"][i])) / 2 for i in whole]
    one = effects["a=1"]
    assert one.versus.difference.mean == pytest.approx(statistics.fmean(a))
    assert (one.versus.difference.n, one.versus.left_out, one.versus.failed, one.versus.other_failed) == (5, 3, 1, 2)
    assert one.kind == "better"
    text = state_effects(effects, unit="nats")
    assert "over the 5 of 8 seeds on which all 4 cells trained; 3 left out" in text
    assert "a=1 failed in 1 of 16 runs, a=0 in 2 of 16, which does not show that either fails more often." in text


def test_a_level_that_is_better_when_all_train_and_failed_more_is_mixed():
    values = draw(8, effects=(-0.1, 0.0, 0.0))
    values["10"][2] = values["11"][4] = BAD
    effects = compare({name: cell(own) for name, own in values.items()}, seeds=8)
    assert effects["a=1"].kind == "mixed"
    assert effects["b=1"].versus.failed == effects["b=1"].versus.other_failed == 1
    values = draw(8, effects=(-0.1, -0.1, -0.2))
    values["11"][4] = BAD
    effects = compare({name: cell(own) for name, own in values.items()}, seeds=8)
    assert {name: effect.kind for name, effect in effects.items()} == {
        "a=1": "mixed", "b=1": "mixed", "a=1 x b=1": "better together"
    }  # fmt: skip


def test_failures_are_compared_by_the_sign_test_over_seeds():
    values = draw(12)
    for seed in range(10):
        values["10"][seed] = BAD
        values["11"][seed] = BAD if seed % 2 else values["11"][seed]
    effects = compare({name: cell(own) for name, own in values.items()}, seeds=12)
    one = effects["a=1"]
    assert one.kind == "fails more often"
    assert one.versus.failure_p == pytest.approx(stats.binomtest(10, 10).pvalue)
    assert (one.versus.failed, one.versus.other_failed, one.failure_side) == (15, 0, 1)
    assert one.family == 3 + 1  # on the five seeds that tell the levels of b apart no test can reach significance
    assert effects["b=1"].kind == "cannot be stated"
    assert "all of its 4 cells trained on 2 of 12 seeds" in state_effects(effects, unit="nats")
    assert compare({name: cell(own) for name, own in values.items()}, maximize=True)["a=1"].kind == one.kind


def test_many_cells_that_fail_on_one_seed_are_one_seed():
    """Cells of one seed may fail together: the seed is counted, and not its cells."""
    values = draw(12)
    for seed in range(4):
        values["10"][seed] = values["11"][seed] = BAD
    one = compare({name: cell(own) for name, own in values.items()}, seeds=12)["a=1"]
    assert one.versus.failed == 8
    assert one.versus.failure_p == pytest.approx(2 * 0.5**4)
    assert one.failure_side == 0


def test_a_cell_that_never_trains_leaves_nothing_to_state():
    values = draw(5)
    values["11"] = [BAD] * 5
    effects = compare({name: cell(own) for name, own in values.items()}, seeds=5)
    assert {effect.kind for effect in effects.values()} == {"cannot be stated"}
    assert all(effect.decided and effect.untrained == ("11",) for effect in effects.values())
    assert "11 trained on none" in state_effects(effects, unit="nats")
    without = {**{name: cell(own) for name, own in values.items()}, "11": FreshOutcomes({}, found=False)}
    assert {effect.kind for effect in compare(without).values()} == {"cannot be stated"}


def test_before_all_cells_have_a_look_there_are_figures_alone():
    values = draw(3)
    cells = {name: cell(own) for name, own in values.items()}
    cells["11"] = FreshOutcomes(cells["11"].outcomes, {}, None)
    effects = compare(cells)
    assert {effect.kind for effect in effects.values()} == {"figures"}
    assert summarise_effects(effects, "nats") == ""
    later = {**{name: cell(own, (3, 4)) for name, own in draw(4).items()}, "11": cell(draw(4)["11"], (3,))}
    assert {effect.looks for effect in compare(later).values()} == {Looks((3,), 3)}  # killed while looks were written


def test_an_effect_stands_at_any_other_settings_of_the_cells_that_are_behind():
    values = draw(seeds=6, effects=(-0.3, 0.0, 0.0))

    def gain(amount, se, *names, may_try=False):
        rivals = Valley((Rival((1.0,), amount, se**2, 6, False),), may_try)
        cells = {
            name: cell(own, **({"find_valley": lambda: rivals} if name in names else {}))
            for name, own in values.items()
        }
        return compare(cells)["a=1"]

    assert gain(0.1, 0.001, "00", "01").kind == "better"
    assert gain(0.5, 0.001, "10", "11").kind == "better"  # those that are ahead may gain what they like
    lost = gain(0.25, 0.03, "00", "01", may_try=True)
    assert (lost.kind, set(lost.open)) == ("undecided", {"00", "01"})
    d, one = lost.versus.difference, gain(0.25, 0.03, "00")
    own = (d.sd**2 / 6, 5)
    for found, count in ((lost, 2), (one, 1)):  # each cell has a weight of one half
        parts = [own, *[(0.25 * 0.03**2, 6)] * count]
        variance = sum(part for part, _ in parts)
        freedom = variance**2 / sum(part**2 / free for part, free in parts)
        left = abs(d.mean) - count * 0.125 - stats.t.ppf(1 - lost.versus.level / 2, freedom) * math.sqrt(variance)
        assert found.challenge.held == (left > 0)
    assert one.challenge.held
    assert "tuning was not exhausted" in state_effects({"a": gain(0.25, 0.03, "00", "01")}, unit="nats")


def test_the_error_of_the_family_is_kept_and_a_true_effect_is_found():
    """Reduced from benchmarks/effects.py, without a search: any claim of four equal cells is false."""
    claims = found = 0
    for entropy in range(400):
        equal = compare({name: cell(own) for name, own in draw(5, entropy=entropy).items()}, seeds=5)
        claims += any(effect.kind != "undecided" for effect in equal.values())
        better = draw(5, effects=(-0.04, 0.0, 0.0), entropy=entropy)
        found += compare({name: cell(own) for name, own in better.items()}, seeds=5)["a=1"].kind == "better"
    assert claims / 400 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)
    assert claims / 400 >= 0.02  # of 4 % that one look may spend
    assert found / 400 > 0.8
