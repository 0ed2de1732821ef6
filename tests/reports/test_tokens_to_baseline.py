"""How much training an arm needs to reach the final objective of the baseline, against hand-made curves."""

import json
import math
import statistics

import pytest
from run_table import join

from ablate.reports.report import assemble
from ablate.reports.tokens_to_baseline import compare_tokens, find_update_at_goal, tabulate_tokens
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, Run
from ablate.sweeps.spec.sweep import Sweep

T = {2: 12.706204736, 3: 4.302652730, 4: 3.182446305}  # Student's, 97.5 %, of n - 1 degrees of freedom


def list_sections(made):
    return tabulate_tokens(made.tokens_to_baseline, made.record.spec, made.usage_unit.noun)


def training(arm, seed, curve, items=10):
    """One that ended at the last point of `curve`; None: it diverged."""
    status = "completed" if curve else "diverged"
    step = max(curve) if curve else 3
    value = curve[step] if curve else None
    metrics = {"val/loss": value} if curve else {}
    return Run(arm, seed, status, {}, value, metrics, curve or {}, step, 1.0, None, "", items, seed=seed)


def build(curves, maximize=False, items=10, trivial_loss=None, **more):
    """A sweep with `curves`, arm -> its curves on fresh seeds, of which the first arm is the baseline."""
    kinds = dict(zip(curves, ("pre", "post", "mix", "lns"), strict=False))
    objective = {"metric": "val/accuracy"} if maximize else {"metric": "val/loss"}
    data = {"experiment": {"model": "vit-digits"}} if maximize else {}
    seeds = max(map(len, curves.values()))
    tree = {"name": "t", "arms": {arm: {"norm": kind} for arm, kind in kinds.items()}, "objective": objective}
    tree |= {"search": {"optimizer.lr": [1e-3, 1e-2]}, "confirm": {"seeds": seeds}, **data, **more}
    spec = Sweep.from_tree(tree)
    runs = {
        arm: [training(arm, 1 + i, curve, items if arm == "other" else 10) for i, curve in enumerate(own)]
        for arm, own in curves.items()
    }
    trials = {arm: [training(arm, 0, {100: 1.0})] for arm in curves}
    return SweepRecord("t", 1, spec, join({"search": trials, FRESH: runs}, trivial_loss))


BASE = [{50: 3.0, 100: 2.0}, {50: 3.0, 100: 2.2}, {50: 3.0, 100: 2.4}]


def test_the_share_is_paired_by_seed_with_students_interval():
    """The arm falls by 0.05 in an update: from 4 at 20 it is at 2, 2.2 and 2.4 after 60, 56 and 52 updates."""
    record = build({"base": BASE, "arm": [{20: 4.0, 80: 1.0, 100: 0.9}] * 3})
    (arm,) = compare_tokens(record).values()
    shares = [0.60, 0.56, 0.52]
    assert (arm.fresh, arm.seeds, arm.reached, arm.failed, arm.left_out, arm.at_first) == (True, 3, 3, 0, 0, 0)
    assert (arm.validations, arm.share.n) == (3, 3)
    assert arm.share.mean == pytest.approx(statistics.fmean(shares))
    assert arm.share.half_width == pytest.approx(T[3] * statistics.stdev(shares) / math.sqrt(3))
    assert arm.updates.mean == pytest.approx(56)


def test_more_may_be_better():
    record = build({"base": [{50: 0.5, 100: 0.8}] * 3, "arm": [{40: 0.4, 80: 0.9}] * 3}, maximize=True)
    (arm,) = compare_tokens(record).values()
    assert arm.share.mean == pytest.approx((40 + 40 * 0.4 / 0.5) / 100)


def test_an_update_of_more_tokens_counts_with_its_tokens():
    record = build({"base": BASE, "other": [{20: 4.0, 80: 1.0}] * 3}, items=25)
    assert compare_tokens(record)["other"].share.mean == pytest.approx(2.5 * 0.56)


def test_there_is_no_mean_over_the_seeds_that_happen_to_reach_it():
    never, reaching = {20: 4.0, 100: 3.0}, {20: 4.0, 80: 1.0}
    record = build({"base": BASE, "never": [reaching, never, reaching], "failed": [None, reaching, reaching]})
    never, failed = compare_tokens(record).values()
    assert (never.seeds, never.reached, never.failed, never.share, never.updates) == (3, 2, 0, None, None)
    assert (failed.seeds, failed.reached, failed.failed, failed.share) == (3, 2, 1, None)
    stuck = compare_tokens(build({"base": BASE, "arm": [reaching] * 3}, trivial_loss=2.2))["arm"]
    assert (stuck.seeds, stuck.left_out, stuck.reached) == (1, 2, 1)  # the baseline is stuck at 2.2 and 2.4


def test_the_first_validation_censors():
    record = build({"base": BASE, "arm": [{20: 1.5, 80: 1.0}, {20: 4.0, 80: 1.0}, {20: 4.0, 80: 1.0}]})
    assert compare_tokens(record)["arm"].at_first == 1


def test_seeds_of_one_of_the_two_are_not_compared():
    record = build({"base": BASE, "arm": [{20: 4.0, 80: 1.0}] * 2})
    assert compare_tokens(record)["arm"].share.n == 2
    assert compare_tokens(record)["arm"].share.half_width == pytest.approx(T[2] * 0.04 / math.sqrt(2) / math.sqrt(2))


def test_before_the_first_fresh_seed_it_is_that_of_the_search(tmp_path, without_figures):
    record = build({"base": [], "arm": []}, confirm={"seeds": 3})
    arm = compare_tokens(record)["arm"]
    assert (arm.fresh, arm.seeds, arm.share.half_width) == (False, 1, None)
    assert list_sections(assemble(record, tmp_path, draw=False)) == []


def test_at_a_grid_each_point_is_compared_with_the_baseline_there():
    arms = {"a": {"norm": "pre"}, "b": {"norm": "post"}}
    grid = {"sampler": "grid", "confirm": {"at": "grid", "seeds": 3}, "arms": arms}
    spec = build({"base": BASE, "arm": BASE}, **grid).spec
    low, high = ([name for name, cell in spec.cells.items() if cell.arm == arm] for arm in ("a", "b"))
    curves = {low[0]: {50: 3.0, 100: 2.0}, low[1]: {50: 3.0, 100: 1.0}, **{name: {20: 3.0, 100: 1.0} for name in high}}
    runs = {name: [training(name, seed, curve) for seed in (1, 2, 3)] for name, curve in curves.items()}
    record = SweepRecord("t", 1, spec, join({FRESH: runs}))
    shares = {arm: tokens.share.mean for arm, tokens in compare_tokens(record).items()}
    assert shares == {high[0]: pytest.approx(0.6), high[1]: pytest.approx(1.0)}


def test_the_cells_of_a_factorial_have_no_baseline():
    parts = {"norm": ["pre", "lns"], "init": ["normal", "scaled"]}
    tree = {"name": "f", "components": parts, "design": "factorial", "search": {"optimizer.lr": [1e-3, 1e-2]}}
    spec = Sweep.from_tree(tree)
    searched = {arm: [training(arm, 0, {9: 1.0})] for arm in spec.all_arms}
    assert compare_tokens(SweepRecord("f", 1, spec, join({"search": searched}))) == {}


@pytest.fixture
def section(tmp_path):
    def tabulate(record):
        made = assemble(record, tmp_path, draw=False)
        (found,) = list_sections(made)
        text = " ".join(made.table().split())
        assert found.title in text
        assert found.title in made.page()
        return found, " ".join(found.sentences), json.loads(json.dumps(made.to_dict()["arms"]))

    return tabulate


def test_the_report_says_what_it_is_and_what_it_is_not(section):
    reaching = {20: 4.0, 80: 1.0, 100: 0.9}
    curves = {"base": [*BASE, None], "arm": [reaching] * 4, "same": [{20: 1.0, 100: 0.9}] * 4}
    found, text, arms = section(build({**curves, "bad": [None, reaching, {20: 4.0, 100: 3.9}, reaching]}))
    assert found.title == "Tokens to reach the final val/loss of base"
    rows = {row[0]: row[1:] for row in found.table.rows}
    width = 100 * T[3] * statistics.stdev([0.60, 0.56, 0.52]) / math.sqrt(3)
    assert rows["arm"] == ["3", "0/4", "3/3", "0", f"56.0 ± {width:.1f} %", "56"]
    assert rows["same"] == ["3", "0/4", "3/3", "3", "20.000 %", "20"]
    assert rows["bad"] == ["3", "1/4", "1/3", "0", "-", "-"]
    assert "not one of the comparisons that share the error of 5 %, and no verdict follows from it" in text
    assert "has not finished its schedule there" in text
    assert "Not reached: bad on 2 of 3 (1 of them failed). No mean is given there" in text
    assert (
        "Left out: 1 seed on which base failed and has no final result. Of these, failed too: arm on 0 of 1, " in text
    )
    assert "Reached at the first validation: same 3 of 3. They may have reached it earlier" in text
    assert "same: equal on every seed, which gives no interval." in text
    assert "of which a training has 2 to 3" in text
    assert arms["base"]["to_baseline"] is None
    assert arms["arm"]["to_baseline"]["share"]["mean"] == pytest.approx(0.56)
    assert (arms["bad"]["to_baseline"]["share"], arms["bad"]["to_baseline"]["failed"]) == (None, 1)


def test_where_the_baseline_failed_the_failures_of_an_arm_count_still(section):
    reaching = {20: 4.0, 80: 1.0, 100: 0.9}
    record = build({"base": [None, None, *BASE[:1]], "bad": [None, None, None], "good": [reaching] * 3})
    found, text, arms = section(record)
    rows = {row[0]: row[1:] for row in found.table.rows}
    assert (rows["bad"][:3], rows["good"][:3]) == (["1", "3/3", "0/1"], ["1", "0/3", "1/1"])
    assert "Left out: 2 seeds on which base failed and has no final result. Of these, failed too: bad on 2 of 2" in text
    assert "good on 0 of 2" in text
    assert (arms["bad"]["to_baseline"]["left_out_failed"], arms["bad"]["to_baseline"]["failed"]) == (2, 1)


def test_where_every_seed_of_the_baseline_failed_there_is_nothing_to_reach(section):
    found, text, _ = section(build({"base": [None] * 3, "bad": [None] * 3, "good": [{20: 4.0, 100: 0.9}] * 3}))
    assert found.table is None
    assert text == (
        "base trained on none of the seeds, so there is no final val/loss to reach. Left out: 3 seeds on which base "
        "failed and has no final result. Of these, failed too: bad on 3 of 3 and good on 0 of 3."
    )


def test_one_validation_says_nothing_of_how_soon(section):
    found, text, _ = section(build({"base": [{100: 2.0}] * 3, "arm": [{100: 1.9}] * 3}))
    assert found.table is None
    assert text.startswith("A training has one validation, so it is not known how soon")


def test_images_are_called_images(section):
    record = build({"base": [{50: 0.5, 100: 0.8}] * 3, "arm": [{40: 0.4, 80: 0.9}] * 3}, maximize=True)
    found, text, _ = section(record)
    assert found.title == "Images to reach the final val/accuracy of base"
    assert "as a share of all images of base" in text


@pytest.mark.parametrize(
    ("curve", "goal", "expected"),
    [
        ({10: 4.0, 20: 3.0, 30: 2.0}, 2.5, 25.0),
        ({10: 4.0, 20: 3.0}, 3.0, 20.0),
        ({10: 4.0, 20: 3.0, 30: 3.5, 40: 2.0}, 3.25, 17.5),
        ({10: 4.0}, 5.0, 10.0),
        ({10: float("inf"), 20: 3.0}, 3.5, 20.0),
        ({10: 4.0, 20: 3.0}, 2.9, None),
        ({}, 1.0, None),
    ],
)
def test_where_a_curve_reaches_a_goal(curve, goal, expected):
    assert find_update_at_goal(curve, goal) == (None if expected is None else pytest.approx(expected))
    mirrored = {step: -value for step, value in curve.items()}
    assert find_update_at_goal(mirrored, -goal, less_is_better=False) == (
        None if expected is None else pytest.approx(expected)
    )
