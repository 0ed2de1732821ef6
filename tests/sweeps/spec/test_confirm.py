"""How arms are to be tested: what is accepted, what is refused and in which words, and the comparisons of a file."""

import pytest
import yaml

from ablate.config.errors import ConfigError
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.parts import MOST_SEEDS
from ablate.sweeps.spec.sweep import Sweep

ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}, "mix": {"norm": "mix"}}
GRID = {f"optimizer.{name}": {"low": 0.1, "high": 1, "num": 1000} for name in ("lr", "eps", "weight_decay")}
RATES = {"optimizer.lr": [1e-3, 3e-3]}


def sweep(**parts):
    return Sweep.from_tree({"name": "demo", "arms": ARMS, "search": RATES, "sampler": "grid", **parts})


@pytest.mark.parametrize(
    ("parts", "path", "message"),
    [
        ({"confirm": {"seeds": {"min": 5, "max": 4}, "effect": 1}}, "confirm.seeds", "min is above max, given 5 and 4"),
        ({"confirm": {"seeds": {"min": 2, "max": 4}, "effect": 1}}, "confirm.seeds.min", "greater than or equal to 3"),
        ({"confirm": {"seeds": {"min": 3}, "effect": 1}}, "confirm.seeds.max", "is required"),
        ({"confirm": {"seeds": -1}}, "confirm.seeds", "must be a whole number from 0 to 1000, or such as {min: 3"),
        ({"confirm": {"seeds": True}}, "confirm.seeds", "must be a whole number from 0"),
        ({"confirm": {"seeds": "many"}}, "confirm.seeds", "must be a whole number from 0"),
        ({"confirm": {"seeds": 3, "effect": 0}}, "confirm.effect", "must be greater than 0"),
        ({"confirm": {"seeds": 3, "effect": -0.1}}, "confirm.effect", "must be greater than 0"),
        (
            {"confirm": {"seeds": {"min": 3, "max": 9}}},
            "confirm.effect",
            "the smallest difference of val/loss that mat",
        ),
        ({"confirm": {"candidates": 4}}, "confirm.candidates", "cannot be more than the 2 trials of a search"),
        ({"confirm": {"seeds": 1000000000}}, "confirm.seeds", "must be a whole number from 0 to 1000"),
        ({"confirm": {"selection_seeds": 1000000000}}, "confirm.selection_seeds", "less than or equal to 500"),
        ({"confirm": {"candidates": 1000000000}}, "confirm.candidates", "less than or equal to 1000000"),
        ({"budget": {"trials": 1000000000}}, "budget.trials", "less than or equal to 1000000"),
        ({"search": {"optimizer.lr": {"low": 1e-3, "high": 1, "num": 10**9}}}, "search.optimizer.lr.num", "to 1000000"),
        ({"search": {"trainer.max_steps": {"low": 1, "high": 10**9}}}, "arms.mix.search", "steps: 1,000,000,000 val"),
        ({"search": GRID}, "arms.pre.search", "1,000,000,000 combinations, and a grid has at most 1,000,000"),
        (
            {"experiment": {"seed": 2**32 - 9}, "confirm": {"seeds": 9}},
            "experiment.seed",
            "is too large: the seeds of confirm would go up to 4294968289. Accepted: at most 4294967295, with these",
        ),
        (
            {"arms": {**ARMS, "ln": {"norm": "lns", "seed": 2**32 - 1}}, "confirm": {"seeds": 3}},
            "arms.ln.seed",
            "the seeds of confirm would go up to",
        ),
        ({"confirm": {"candidates": 0}}, "confirm.candidates", "greater than or equal to 1"),
        (
            {"arms": {}, "confirm": {"seeds": {"min": 3, "max": 9}, "effect": 1}},
            "confirm.seeds",
            ("there is only one arm"),
        ),
        ({"search": {"seed": [1, 2]}}, "search.seed", "the best of several seeds is chance"),
        (
            {"arms": {**ARMS, "ln": {"norm": "lns", "search": {"seed": [1]}}}},
            "arms.ln.search.seed",
            "a seed is not a setting",
        ),
        (
            {"objective": {"metric": "val/accuracy", "direction": "minimize"}, "experiment": {"data": "digits"}},
            "objective.direction",
            "a higher val/accuracy is better",
        ),
        ({"sampler": "random", "fixed": [{"seed": 1}]}, "fixed.0.seed", "a seed is not a setting"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(parts, path, message):
    with pytest.raises(ConfigError) as caught:
        sweep(**parts)
    assert message in {problem.path: problem.message for problem in caught.value.problems}[path]


def test_seeds_are_a_number_or_a_range_and_survive_a_round_trip():
    for seeds, first, most in ((0, 0, 0), (5, 5, 5), ({"min": 3, "max": 12}, 3, 12)):
        spec = sweep(confirm={"seeds": seeds, "effect": 0.1})
        assert (spec.confirm.first_seeds, spec.confirm.most_seeds) == (first, most)
        assert spec.confirm.is_sequential == isinstance(seeds, dict)
        assert Sweep.from_tree(yaml.safe_load(spec.to_yaml())) == spec


def test_tuning_selection_and_test_never_share_a_seed():
    spec = sweep(experiment={"seed": 7}, confirm={"seeds": 5, "selection_seeds": 3})
    assert spec.fresh_seeds() == [8, 9, 10, 11, 12]
    assert spec.fresh_seeds(2) == [8, 9]
    assert min(spec.selection_seeds()) == 8 + MOST_SEEDS > max(spec.fresh_seeds(MOST_SEEDS))
    assert len(spec.selection_seeds()) == 3


def test_an_arm_with_one_candidate_needs_no_selection():
    spec = sweep(arms=ARMS, confirm={"seeds": 3})
    assert spec.count_candidates("pre") == 2
    assert sweep(confirm={"seeds": 3, "candidates": 1}).count_candidates("pre") == 0
    assert sweep(confirm={"seeds": 0}).count_candidates("pre") == 0
    assert sweep(search={}, confirm={"seeds": 3}).count_candidates("pre") == 0
    learned = {"sampler": "tpe", "confirm": {"seeds": 3}}
    assert sweep(**learned).count_candidates("pre") == 2  # of two points
    rates = {"optimizer.lr": {"low": 1e-3, "high": 1e-2}}
    assert sweep(**learned, search=rates).count_candidates("pre") == 3


@pytest.fixture
def file(tmp_path):
    def write(**parts):
        sizes = {"s": {"model.hidden": 32}, "m": {"model.hidden": 64}, "l": {"model.hidden": 96}}
        tree = {"name": "t", "arms": ARMS, "search": RATES, "sampler": "grid", "confirm": {"seeds": 3}, "sizes": sizes}
        path = tmp_path / "t.yaml"
        path.write_text(yaml.safe_dump({**tree, **parts}))
        return path

    return write


def test_the_sizes_of_a_file_are_one_family_whichever_is_asked_for(file):
    path = file()
    assert [spec.family for spec in load_sweeps(path)] == [4, 4, 4]
    assert [spec.family for spec in load_sweeps(path, size="m")] == [4]
    assert Sweep.load(path, size="l").family == 4
    assert [spec.family for spec in load_sweeps(path, {"confirm.seeds": 2})] == [None] * 3  # two seeds claim nothing
    assert [spec.family for spec in load_sweeps(path, factor=0.5)] == [4, 4, 4]


def test_a_size_with_arms_or_seeds_of_its_own_counts_as_it_is(file):
    sizes = {
        "s": {"model.hidden": 32, "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}}},
        "m": {"model.hidden": 64},
        "l": {"model.hidden": 96, "confirm": {"seeds": 2}},
        "xl": {"model.hidden": 128, "confirm": {"seeds": {"min": 3, "max": 9}, "effect": 0.1}},
    }
    assert [spec.family for spec in load_sweeps(file(sizes=sizes))] == [4, 3, 5, 3]


def test_a_baseline_that_is_no_arm_of_the_other_stages_leaves_them_in_the_family(file):
    stages = {name: {"arms": {arm: {"norm": arm} for arm in (name, "lns", "mix")}} for name in ("post", "pre")}
    path = file(sizes={}, stages=stages)
    assert [spec.family for spec in load_sweeps(path, {"baseline": "pre"}, size=["pre"])] == [2]
    assert [spec.family for spec in load_sweeps(path, {"stages.pre.baseline": "pre"})] == [2, 2]


def test_a_file_of_one_sweep_has_no_family_besides(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump({"name": "t", "arms": ARMS, "search": RATES, "sampler": "grid"}))
    assert Sweep.load(path).family is None
