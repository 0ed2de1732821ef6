"""`confirm: {at: grid}`: the arms that it makes, what is refused and in which words, the comparisons of a file."""

import pytest
import yaml

from ablate.config.errors import ConfigError
from ablate.scheduler.dry_run import describe_cost, outline
from ablate.scheduler.preparation import list_differences
from ablate.sweeps.seed_plan import count_comparisons, count_crossed_runs
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep

ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}, "mix": {"norm": "mix"}}
RATES = {"optimizer.lr": [3e-3, 2.5e-2]}
AT_GRID = {"at": "grid", "seeds": 5}
ALPHAS = {"norm": "mix", "search": {"norm.alpha": [0.34, 0.5]}}


def tree(**parts):
    return {"name": "demo", "arms": ARMS, "search": RATES, "sampler": "grid", "confirm": AT_GRID, **parts}


def sweep(**parts):
    return Sweep.from_tree(tree(**parts))


def test_each_arm_at_each_point_is_an_arm_of_its_own():
    spec = sweep(baseline="post")
    assert list(spec.all_arms) == [f"{arm} lr={rate}" for rate in ("0.003", "0.025") for arm in ARMS]
    assert not any(map(spec.space, spec.all_arms))
    for name, cell in spec.cells.items():
        made = spec.base(name)
        assert (made.norm.kind, made.optimizer.lr) == (cell.arm, cell.point["optimizer.lr"])
        assert cell.baseline == f"post lr={cell.point['optimizer.lr']}"
        assert spec.trials(name) == spec.count_selection_runs(name) == 0
    assert spec.fresh_seeds() == [1, 2, 3, 4, 5]
    assert (count_comparisons(spec), count_crossed_runs(spec)) == (4, 0)
    assert list(spec.without_grid().all_arms) == list(ARMS)
    assert Sweep.from_tree(spec.to_tree()).cells == spec.cells


def test_points_that_an_arm_has_alone_are_compared_with_the_baseline_at_what_all_share():
    spec = sweep(arms={"pre": ARMS["pre"], "mix": ALPHAS})
    assert list(spec.all_arms)[:3] == ["pre lr=0.003", "mix lr=0.003 alpha=0.34", "mix lr=0.003 alpha=0.5"]
    assert {cell.baseline for name, cell in spec.cells.items() if "0.003" in name} == {"pre lr=0.003"}
    assert count_comparisons(spec) == 4
    assert count_comparisons(sweep(arms={})) == 0


def test_values_that_look_alike_and_signs_of_names_are_told_apart():
    close = sweep(search={"optimizer.lr": [3e-3, 3.0001e-3]})
    assert "pre lr=0.0030001" in close.cells
    files = sweep(search={"data.files": ["a/b.txt", "a@b.txt"]}, experiment={"data": {"kind": "text", "files": "c"}})
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
        sweep(**parts)
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
    text = outline(sweep())
    assert "arm post: 2 points of 300 updates" in text
    assert "    at optimizer.lr [0.003, 0.025]" in text
    assert "each arm at each point of its grid on the fresh seeds 1, 2, 3, 4, 5: nothing is searched or chosen" in text
    assert "5 seeds, 4 comparisons in the file" in text
    assert "to do: 30 trials" in text
    assert "the arms differ only in norm" in text
    assert describe_cost(sweep()).startswith("30 trainings")


def test_other_arms_are_another_sweep():
    before, now = sweep(confirm={"seeds": 5}), sweep()
    assert list_differences(before, now) == ["confirm.at: best -> grid"]
    assert list_differences(now, sweep(confirm={**AT_GRID, "seeds": 9})) == []
    assert list_differences(before, sweep(confirm={"seeds": 9, "candidates": 2})) == []


def test_a_scaled_grid_keeps_its_points():
    from ablate.sweeps.spec.scale import scale_sweep

    small = scale_sweep(sweep(experiment={"trainer.max_steps": 100}), 0.1)
    assert list(small.all_arms) == list(sweep().all_arms)
    assert {small.base(arm).trainer.max_steps for arm in small.all_arms} == {10}
