"""The arms that components make, written out by hand; and what is told of components that make none."""

from __future__ import annotations

import pytest
import yaml
from optuna.storages import InMemoryStorage

from ablate.config.errors import ConfigError
from ablate.scheduler.dry_run import describe_cost, outline
from ablate.scheduler.preparation import list_differences
from ablate.scheduler.storage import read_generation
from ablate.sweeps.plans import count_comparisons
from ablate.sweeps.spec import audit
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.scale import scale_sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import count_unassigned
from benchmarks.simulation.sweeps import simulate

TWO = {"norm": ["pre", "lns"], "final_norm": {"setting": "norm.final_norm", "levels": [True, False]}}


def sweep(components=TWO, design="factorial", **more):
    tree = {"name": "t", "components": components, "design": design, "sampler": "grid", "confirm": {"seeds": 4}}
    return Sweep.from_tree({**tree, **more})


def settings(spec):
    return {arm: one.settings for arm, one in spec.own_arms.items()}


def refuse(*args, **more):
    with pytest.raises(ConfigError) as error:
        sweep(*args, **more)
    return str(error.value)


def test_one_at_a_time_is_the_first_levels_and_each_change():
    spec = sweep({**TWO, "init": ["normal", "scaled", "small_scaled"]}, "one-at-a-time")
    first = {"norm": "pre", "norm.final_norm": True, "init": "normal"}
    assert settings(spec) == {
        "reference": first,
        "norm=lns": {**first, "norm": "lns"},
        "final_norm=false": {**first, "norm.final_norm": False},
        "init=scaled": {**first, "init": "scaled"},
        "init=small_scaled": {**first, "init": "small_scaled"},
    }
    assert spec.baselines == dict.fromkeys(spec.all_arms, "reference")
    assert len(spec.comparisons) == 4
    assert spec.base("norm=lns").norm.kind == "lns"
    assert spec.base("final_norm=false").norm.final_norm is False


def test_leave_one_out_is_the_last_levels_and_each_back_at_its_first():
    spec = sweep(TWO, "leave-one-out")
    assert settings(spec) == {
        "full": {"norm": "lns", "norm.final_norm": False},
        "norm=pre": {"norm": "pre", "norm.final_norm": False},
        "final_norm=true": {"norm": "lns", "norm.final_norm": True},
    }
    assert spec.baselines == dict.fromkeys(spec.all_arms, "full")


def test_a_factorial_is_every_combination_with_its_contrasts():
    spec = sweep()
    cells = [(norm, final) for norm in ("pre", "lns") for final in (True, False)]
    names = [f"norm={norm} final_norm={str(final).lower()}" for norm, final in cells]
    assert settings(spec) == {
        name: {"norm": norm, "norm.final_norm": final} for name, (norm, final) in zip(names, cells, strict=True)
    }
    pre_on, pre_off, lns_on, lns_off = names
    weights = {name: dict(contrast.weights) for name, contrast in spec.contrasts.items()}
    assert weights == {
        "norm=lns": {pre_on: -0.5, pre_off: -0.5, lns_on: 0.5, lns_off: 0.5},
        "final_norm=false": {pre_on: -0.5, pre_off: 0.5, lns_on: -0.5, lns_off: 0.5},
        "norm=lns x final_norm=false": {pre_on: 1.0, pre_off: -1.0, lns_on: -1.0, lns_off: 1.0},
    }
    assert len(spec.comparisons) == 3
    assert len(sweep(design="main-effects").comparisons) == 2


def test_a_component_of_three_levels_has_two_main_effects_and_a_mapping_names_its_levels():
    recipe = {"levels": {"plain": {}, "stable": {"init": "scaled", "optimizer.weight_decay": 0.0}}}
    spec = sweep({"norm": ["pre", "lns", {"kind": "mix", "alpha": 0.25}], "recipe": recipe})
    assert list(spec.contrasts) == [
        "norm=lns", "norm=mix(alpha=0.25)", "recipe=stable", "norm=lns x recipe=stable",
        "norm=mix(alpha=0.25) x recipe=stable",
    ]  # fmt: skip
    third = 1 / 3
    assert set(spec.contrasts["recipe=stable"].weights.values()) == {-third, third}
    assert settings(spec)["norm=mix(alpha=0.25) recipe=stable"] == {
        "norm": {"kind": "mix", "alpha": 0.25}, "init": "scaled", "optimizer.weight_decay": 0.0,
    }  # fmt: skip
    assert spec.compared_paths == ("norm", "init", "optimizer.weight_decay")


@pytest.mark.parametrize("design", ["one-at-a-time", "leave-one-out", "factorial"])
def test_the_arms_differ_in_the_components_alone_and_are_searched_alike(design):
    spec = sweep(design=design, search={"optimizer.lr": [1e-3, 3e-3]})
    assert audit.find_factor(spec) == ("norm", "norm.final_norm")
    assert audit.find_confounds(spec) == []
    assert {spec.trials(arm) for arm in spec.all_arms} == {2}
    assert spec.design in spec.to_yaml()


def test_another_difference_is_a_confound_that_has_to_be_declared():
    components = {"norm": ["pre", "lns"], "length": {"setting": "schedule.warmup_fraction", "levels": [0.1, 0.2]}}
    assert audit.find_confounds(sweep(components)) == []
    plain = sweep({"norm": {"levels": {"pre": "pre", "lns": {"kind": "lns", "layer": "layernorm"}}}}, "one-at-a-time")
    assert audit.find_factor(plain) == ("norm",)


def test_it_is_the_same_sweep_when_it_is_read_back():
    ends = {"setting": "trainer.val_check_interval", "levels": {"end": None, "often": 10}}
    components = {
        **TWO,
        "decay": {"setting": "optimizer.weight_decay", "levels": {"none": 0.0, "some": 0.1}},
        "val": ends,
    }
    spec = sweep(components)
    storage = InMemoryStorage()
    simulate(spec, lambda arm, params, seed: 2.0 + seed / 7, storage)
    stored = read_generation(storage, "t", 1).spec
    assert stored.to_tree() == spec.to_tree()
    assert settings(stored) == settings(spec)
    assert stored.contrasts == spec.contrasts
    plain = Sweep.from_tree({"name": "t", "search": {"optimizer.lr": [1e-3, 3e-3]}, "sampler": "grid"}).to_tree()
    assert not {"components", "design", "within"} & {*plain}  # so that earlier sweeps are the same as they were


def test_all_problems_of_components_are_told_at_once():
    text = refuse(
        {"final_norm": [True, False], "norm": ["pre", "pre"], "one": {"setting": "norm", "levels": ["pre", "lns"]}},
        "leave-one-out", arms={"a": {}}, baseline="a", factor="norm", within="norm",
    )  # fmt: skip
    assert text.startswith("7 problems")
    for part in (
        "components.final_norm: is not a setting of an experiment. Give setting: PATH",
        "components.norm: has the level pre twice",
        "components.one: sets norm, which norm also sets",
        "arms: cannot be combined with components",
        "baseline: cannot be combined with components",
        "factor: cannot be combined with components",
        "within: needs design: factorial",
    ):
        assert part in text
    assert "Did you mean norm.final_norm?" in text


def test_what_does_not_go_with_a_design_is_told():
    assert "design: is required with components" in refuse(design=None)
    assert "needs components" in refuse(None)
    three = {"norm": ["pre", "post", "lns"]}
    assert "leave-one-out takes two levels" in refuse(three, "leave-one-out")
    many = {f"c{i}": {"setting": f"trainer.c{i}", "levels": [1, 2]} for i in range(7)}
    assert "makes 128 arms (2 x 2 x 2 x 2 x 2 x 2 x 2), and a design has at most 64" in refuse(many)
    grid = {"search": {"optimizer.lr": [1e-3, 3e-3]}, "confirm": {"at": "grid", "seeds": 3}}
    assert "Make the searched setting a component" in refuse(**grid)
    assert len(sweep(TWO, "one-at-a-time", **grid).all_arms) == 6


def test_arms_that_are_not_valid_are_told_by_name_each_problem_once():
    text = refuse({**TWO, "optimizer.lr": [1e-3, -1.0]})
    assert text.count("optimizer.lr") == 1
    assert "norm=pre final_norm=true lr=-1, norm=pre final_norm=false lr=-1, norm=lns final_norm=true lr=-1 and" in text
    text = refuse({"norm": ["pre", "lnss"], "trainer.max_steps": [10, "x"]}, "one-at-a-time")
    assert "Did you mean lns?" in text
    assert "arms.norm=lnss.norm.kind" in text
    assert "arms.max_steps=x.trainer.max_steps" in text


def test_a_level_that_changes_nothing_is_told():
    same = {"norm": ["pre", "lns"], "steps": {"setting": "trainer.max_steps", "levels": {"one": 7, "other": 7.0}}}
    text = refuse(same)
    assert "the arms norm=pre steps=one and norm=pre steps=other are the same experiment" in text
    assert "the arms norm=lns steps=one and norm=lns steps=other" in text


def test_the_sizes_of_a_file_share_one_family(tmp_path):
    file = tmp_path / "sized.yaml"
    file.write_text(
        "name: sized\ncomponents: {norm: [pre, lns], init: [normal, scaled]}\ndesign: factorial\nsampler: grid\n"
        "confirm: {seeds: 3}\nsizes: {small: {model.hidden: 64}, large: {model.hidden: 128},"
        " own: {model.hidden: 256, arms: {pre: {norm: pre}, post: {norm: post}}}}\n"
    )
    small, large, own = load_sweeps(file)
    assert (small.family, large.family, own.family) == (3 + 1, 3 + 1, 3 + 3)
    assert list(own.own_arms) == ["pre", "post"]
    assert not own.contrasts
    file.write_text(file.read_text().partition(", own")[0] + "}\n")
    (plain, _) = load_sweeps(file, {"design": "main-effects"})
    assert plain.family == len(plain.comparisons) == 2
    (other, _) = load_sweeps(file, {"design": "one-at-a-time"})
    assert list(other.all_arms) == ["reference", "norm=lns", "init=scaled"]


def test_a_design_is_scaled_and_what_its_components_set_is_not():
    spec = sweep(search={"optimizer.lr": [1e-3, 3e-3]}, experiment={"trainer": {"max_steps": 100}})
    scaled = scale_sweep(spec, 0.5)
    assert list(scaled.all_arms) == list(spec.all_arms)
    assert {scaled.base(arm).trainer.max_steps for arm in scaled.all_arms} == {50}
    lengths = sweep({"norm": ["pre", "lns"], "trainer.max_steps": [100, 200]})
    with pytest.raises(ConfigError, match=r"trainer\.max_steps: is set by components"):
        scale_sweep(lengths, 0.5)


ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}, "mix": {"norm": "mix"}}
RATES = {"optimizer.lr": [3e-3, 2.5e-2]}
AT_GRID = {"at": "grid", "seeds": 5}
ALPHAS = {"norm": "mix", "search": {"norm.alpha": [0.34, 0.5]}}


def tree(**parts):
    return {"name": "demo", "arms": ARMS, "search": RATES, "sampler": "grid", "confirm": AT_GRID, **parts}


def on_grid(**parts):
    return Sweep.from_tree(tree(**parts))


def test_each_arm_at_each_point_is_an_arm_of_its_own():
    spec = on_grid(baseline="post")
    assert list(spec.all_arms) == [f"{arm} lr={rate}" for rate in ("0.003", "0.025") for arm in ARMS]
    assert not any(map(spec.space, spec.all_arms))
    for name, cell in spec.cells.items():
        made = spec.base(name)
        assert (made.norm.kind, made.optimizer.lr) == (cell.arm, cell.point["optimizer.lr"])
        assert cell.baseline == f"post lr={cell.point['optimizer.lr']}"
        assert spec.trials(name) == spec.count_candidates(name) == 0
    assert spec.fresh_seeds() == [1, 2, 3, 4, 5]
    assert (count_comparisons(spec), count_unassigned(spec)) == (4, {"extension": 0, "challenge": 0})
    assert list(spec.without_grid().all_arms) == list(ARMS)
    assert Sweep.from_tree(spec.to_tree()).cells == spec.cells


def test_points_that_an_arm_has_alone_are_compared_with_the_baseline_at_what_all_share():
    spec = on_grid(arms={"pre": ARMS["pre"], "mix": ALPHAS})
    assert list(spec.all_arms)[:3] == ["pre lr=0.003", "mix lr=0.003 alpha=0.34", "mix lr=0.003 alpha=0.5"]
    assert {cell.baseline for name, cell in spec.cells.items() if "0.003" in name} == {"pre lr=0.003"}
    assert count_comparisons(spec) == 4
    assert count_comparisons(on_grid(arms={})) == 0


def test_values_that_look_alike_and_signs_of_names_are_told_apart():
    close = on_grid(search={"optimizer.lr": [3e-3, 3.0001e-3]})
    assert "pre lr=0.0030001" in close.cells
    files = on_grid(search={"data.files": ["a/b.txt", "a@b.txt"]}, experiment={"data": {"kind": "text", "files": "c"}})
    assert [name for name in files.cells if name.startswith("pre")] == [
        "pre files=a_b.txt (0)",
        "pre files=a_b.txt (1)",
    ]


@pytest.mark.parametrize(
    ("parts", "path", "message"),
    [
        ({"sampler": "tpe"}, "confirm.at", "grid needs sampler: grid, whose points are tested "),
        ({"confirm": {"at": "grid"}}, "confirm.seeds", "is required with at: grid"),
        ({"confirm": {"at": "gird", "seeds": 3}}, "confirm.at", "grid"),
        ({"confirm": {**AT_GRID, "candidates": 2}}, "confirm.candidates", "none is chosen (given: 2)"),
        ({"confirm": {**AT_GRID, "selection_seeds": 1}}, "confirm.selection_seeds", "cannot be combined with at: grid"),
        ({"budget": {"trials": 2}}, "budget", "cannot be combined with confirm.at: grid"),
        ({"pruner": "median"}, "pruner", "every run is an outcome"),
        ({"published": [{"source": "x", "values": {"pre": 2.0}}]}, "published", "for the settings of an arm"),
        ({"arms": {"mix": ALPHAS, "pre": ARMS["pre"]}}, "arms.mix.search", "search norm.alpha for all arms, or choose"),
        (
            {"arms": {**ARMS, "late": {"norm": "lns", "search": {"optimizer.lr": [1e-2]}}}},
            "arms.late.search",
            "pre has no point optimizer.lr=0.01",
        ),
        (
            {"arms": {**ARMS, "warm": {"norm": "lns", "warm_start.from": "sweep:/pre", "warm_start.copy": "head"}}},
            "arms.warm.warm_start.from",
            "pre is tested at every point of its grid, so it has no best trial",
        ),
        ({"search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2}}}, "search", "a grid needs a list of values"),
        ({"search": {"optimizer.lrr": [1, 2]}}, "search.optimizer.lrr", "Did you mean optimizer.lr?"),
        ({"confirm": {"at": "grid", "seeds": {"min": 3, "max": 9}}}, "confirm.effect", "is required if seeds"),
    ],
)
def test_what_a_grid_cannot_mean_is_refused(parts, path, message):
    with pytest.raises(ConfigError) as refused:
        on_grid(**parts)
    told = [str(problem) for problem in refused.value.problems]
    assert any(path in text and message in text for text in told), told


def test_all_comparisons_of_a_file_are_one_family(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump({**tree(), "sizes": {"s": {"model.layers": 2}, "l": {"model.layers": 4}}}))
    assert [count_comparisons(spec) for spec in load_sweeps(file, {})] == [8, 8]
    more = {"search.optimizer.lr": [1e-3, 2e-3, 4e-3]}
    assert [count_comparisons(spec) for spec in load_sweeps(file, more)] == [12, 12]
    assert [count_comparisons(spec) for spec in load_sweeps(file, {"confirm.at": "best"})] == [4, 4]


def test_the_plan_names_arms_points_and_seeds():
    text = outline(on_grid())
    assert "arm post: 2 points of 300 updates" in text
    assert "    at optimizer.lr [0.003, 0.025]" in text
    assert "each arm at each point of its grid on the fresh seeds 1, 2, 3, 4, 5: nothing is searched or chosen" in text
    assert "5 seeds, 4 comparisons in the file" in text
    assert "to do: 30 trials" in text
    assert "the arms differ only in norm" in text
    assert describe_cost(on_grid()).startswith("30 trainings")


def test_other_arms_are_another_sweep():
    before, now = on_grid(confirm={"seeds": 5}), on_grid()
    assert list_differences(before, now) == ["confirm.at: best -> grid"]
    assert list_differences(now, on_grid(confirm={**AT_GRID, "seeds": 9})) == []
    assert list_differences(before, on_grid(confirm={"seeds": 9, "candidates": 2})) == []


def test_a_scaled_grid_keeps_its_points():
    from ablate.sweeps.spec.scale import scale_sweep

    small = scale_sweep(on_grid(experiment={"trainer.max_steps": 100}), 0.1)
    assert list(small.all_arms) == list(on_grid().all_arms)
    assert {small.base(arm).trainer.max_steps for arm in small.all_arms} == {10}
