"""The plan of a sweep, and that looking creates nothing."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml
from rich.console import Console

from ablate.cli import main
from ablate.config.errors import DataError, SweepError
from ablate.config.formatting import format_duration
from ablate.estimate.gpus import find_gpu
from ablate.estimate.plan import Assumed
from ablate.scheduler.dry_run import describe_outlying_gradients, measure_initial_gradients, outline, plan
from ablate.scheduler.own_runs import RUNNER
from ablate.scheduler.run import sweep
from ablate.scheduler.status import read_statuses
from ablate.sweeps.plans import describe_power, plan_sweep
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep
from ablate.training import initial_gradient
from ablate.verdict.looks import Looks
from ablate.verdict.power import count_seeds, find_smallest_difference


@pytest.fixture
def spec(tiny_settings):
    def build(rates=(1e-3, 1e-2), trials=2):
        tree = {"name": "planned", "experiment": tiny_settings, "sampler": "grid", "search": {"optimizer.lr": rates}}
        return Sweep.from_tree({**tree, "budget": {"trials": trials}})

    return build


def test_plan_counts_what_is_left_and_refuses_a_changed_file_as_the_run_would(store, spec):
    assert "to do: 1 trial," in plan(spec(trials=1), 1, None)
    record = sweep(spec(trials=1), console=Console(quiet=True))
    assert record.validation_items == len(spec().base("all").data.load(store / "cache").val)
    text = plan(spec(), 1, None)
    assert "2 trials (1 done)" in text
    assert "to do: 1 trial," in text
    with pytest.raises(SweepError, match=r"search.optimizer.lr: \[0.001, 0.01\] -> \[0.001, 0.1\]"):
        plan(spec(rates=[1e-3, 1e-1]), 1, None)
    assert "to do: 2 trials" in plan(spec(rates=[1e-3, 1e-1]), 1, None, fresh=True)


def test_a_time_that_is_measured_on_a_busy_machine_says_so(store, spec, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (3.25, 0.0, 0.0))
    assert "; longer beside what runs on this machine now (load 3.2 on " in plan(spec(), 1, None)
    monkeypatch.setattr("os.getloadavg", lambda: (0.9, 9.0, 9.0))
    assert "longer" not in plan(spec(), 1, None)


def test_the_time_is_a_range_from_the_fastest_to_the_slowest_update(store, spec, monkeypatch):
    monkeypatch.setattr("ablate.training.timing.time_update", lambda *_: (10.0, 20.0))
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    wanted = spec()
    one = wanted.base("all")
    share = one.validation.compute_share(one.data.load(store / "cache").count_validation_items())
    ends = [format_duration(2 * (1.5 + 12 * seconds / (1 - share))) for seconds in (10.0, 20.0)]
    assert f"; about {ends[0]} to {ends[1]} with 1 at a time" in plan(wanted, 1, None)


def test_the_updates_of_rungs_are_counted(store, tiny_settings):
    rungs = {"method": "rungs", "rungs": 2, "keep": 0.25, "first": 0.5}
    schedule = {"kind": "wsd", "warmup_steps": 2, "decay_fraction": 0.4}
    tree = {"name": "planned", "experiment": {**tiny_settings, "schedule": schedule}}
    spec = Sweep.from_tree({**tree, "search": {**rungs, "optimizer.lr": [1e-3, 3e-3, 1e-2, 3e-2]}})
    items = sum(rung.trained for rung in spec.plan_rungs("all")) * spec.base("all").items_per_update
    assert f"to do: 4 trials, {items:,} tokens" in plan(spec, 1, None)


@pytest.mark.parametrize(
    "settings", [{"model": "llama-1b"}, {"model": "llama-71m", "trainer.batch_size": 512}], ids=["model", "batch"]
)
def test_what_takes_long_on_a_cpu_is_not_timed(store, tiny_settings, monkeypatch, settings):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("ablate.training.timing.time_update", lambda *_: pytest.fail("it is timed"))
    tree = {"name": "planned", "experiment": {**tiny_settings, **settings}, "search": {"optimizer.lr": [1e-3]}}
    assert "too large to be timed here; " in plan(Sweep.from_tree({**tree, "budget": {"trials": 1}}), 1, None)


def test_a_vocabulary_below_the_tokenizers_is_told_before_anything_is_timed(store, tiny_settings):
    tree = {
        "name": "planned",
        "experiment": {**tiny_settings, "model.vocab_size": 1},
        "search": {"optimizer.lr": [1e-3]},
    }
    with pytest.raises(DataError, match=r"The tokenizer has 256 tokens and model\.vocab_size is 1\."):
        plan(Sweep.from_tree(tree), 1, None)


def test_looking_at_sweeps_creates_nothing(store):
    assert read_statuses() == []
    with pytest.raises(SweepError, match="There are none yet"):
        read_statuses("nosuch")
    assert not (store / "optuna.db").exists()


def test_the_plan_says_what_is_compared_and_what_else_differs(store, tiny_settings):
    tree = {
        "name": "planned",
        "experiment": tiny_settings,
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post", "init": "scaled"}},
        "confounds": "init",
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2}},
        "fixed": [{"optimizer.lr": 2e-3}],
        "budget": {"trials": 5},
        "confirm": {"seeds": 2},
    }
    text = plan(Sweep.from_tree(tree), 1, None)
    assert "the arms differ in norm, and also in init.kind: normal (pre), scaled (post)" in text
    assert "arm post: 5 trials of 12 updates = 1,536 tokens each" in text
    own = {name: {"norm": "pre", "search": {"optimizer.lr": [rate, 8e-3]}} for name, rate in (("a", 1e-3), ("b", 2e-3))}
    same = {
        **tree,
        "arms": own,
        "confounds": "optimizer.lr",
        "search": {},
        "fixed": [],
        "budget": {},
        "sampler": "grid",
    }
    assert "the arms differ only in optimizer.lr: searched, [0.001, 0.008] (a)" in plan(Sweep.from_tree(same), 1, None)
    assert text.count("starting from optimizer.lr=0.002") == 2
    assert "then the best 3 settings of each arm on the selection seeds 1001, 1002" in text
    assert "on the fresh seeds 1, 2" in text
    assert "two seeds give figures but no verdict" in text
    assert "to do: 26 trials, 39,936 tokens" in text
    assert "; 12 of them to choose among candidates\n" in text
    assert text.endswith("\nat most 16 more: 4 extension runs, 12 further selection runs")


def test_without_its_data_the_plan_says_what_it_can_and_what_is_missing(store, tiny_settings, tmp_path, capsys):
    file = tmp_path / "absent.yaml"
    data = {"kind": "text", "files": str(tmp_path / "none.txt"), "seq_len": 32}
    search = {"optimizer.lr": [1e-3, 1e-2]}
    tree = {"name": "absent", "experiment": {**tiny_settings, "data": data}, "search": search, "budget": {"trials": 2}}
    file.write_text(yaml.safe_dump(tree))
    assert main(["sweep", str(file), "--dry-run"]) == 2
    told = capsys.readouterr()
    assert "to do: 2 trials, 3,072 tokens" in told.out
    assert "none.txt" in told.err


def build_planned(tiny_settings, seeds, **confirm):
    return {
        "name": "planned",
        "experiment": tiny_settings,
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}, "mix": {"norm": "mix"}},
        "search": {"optimizer.lr": [1e-3, 1e-2]},
        "sampler": "grid",
        "confirm": {"seeds": seeds, **confirm},
        "published": [
            {"source": "Table 2", "values": {"pre": 2.0, "post": 2.5, "mix": 1.99}},
            {"source": "Table 3", "metric": "val/perplexity", "values": {"pre": 10.0, "mix": 9.9}},
        ],
    }


def lines_of(*given, **confirm):
    return [line.strip() for line in outline(Sweep.from_tree(build_planned(*given, **confirm))).splitlines()]


@pytest.mark.parametrize("setting", [{"trainer.cpu_offload": True}, {"trainer.tensor_parallel": 2}])
def test_the_outline_of_runs_on_several_gpus_says_their_checkpoints(tiny_settings, setting):
    settings = {**tiny_settings, "trainer.devices": 2, "trainer.strategy": "fsdp", **setting}
    tree = build_planned(settings, 3)
    assert re.search(r"(?m)^checkpoint  [\d.]+ [kM]B; up to 3", outline(Sweep.from_tree(tree)))


def test_the_plan_says_what_its_seeds_can_show_and_what_they_cannot(tiny_settings):
    lines = lines_of(tiny_settings, 5, sd=0.02, sd_source="the 9m pilot", effect=0.01)
    smallest = find_smallest_difference(0.02, Looks((5,), 5), 2)
    (power,) = [line for line in lines if line.startswith("5 seeds, 2 comparisons in the file")]
    assert f"differences of val/loss of at least {smallest:.2g}, by" in power
    assert "by a standard deviation of 0.02 of a paired difference over seeds, from the 9m pilot" in power
    assert any("fails on none of 5 seeds may still fail on up to 45 %" in line for line in lines)
    warnings = [line for line in lines if line.startswith("WARNING")]
    needed = count_seeds(0.02, 0.01, 2)
    assert warnings[0].startswith("WARNING: confirm.effect, 0.01, is less than these seeds can detect: it would need ")
    assert f"need {needed} ({3 * (needed - 5)} more runs of 3 arms, " in warnings[0]
    assert ["post" in line for line in warnings[1:]] == [False, False]
    assert "the difference of mix and pre in Table 2, 0.01," in warnings[1]
    assert "in Table 3 (perplexities, in nats), 0.01," in warnings[2]
    challenge = (
        "before an arm is told that it lost: up to 6 further settings, at the winner's and around its best, and "
    )
    assert f"{challenge}fresh seeds again for a better one, at most 84 more" in lines  # 3 x (6 x 3 + 2 x 5)
    assert "at most 96 more: 12 further selection runs, 84 challenge runs" in lines


def test_at_a_scale_the_plan_claims_nothing_by_the_standard_deviation_and_the_gaps_of_full_runs(
    tiny_settings, tmp_path
):
    confirm = {"sd": 0.02, "sd_source": "runs of 124M", "effect": 0.01}
    tree = build_planned(tiny_settings, 5, **confirm)
    tree["experiment"] = {**tiny_settings, "trainer": {**tiny_settings["trainer"], "max_steps": 100}}
    file = tmp_path / "planned.yaml"
    file.write_text(yaml.safe_dump(tree))
    (small,) = load_sweeps(file, factor=0.1)
    power, *rest = describe_power(small)
    smallest = find_smallest_difference(1, Looks((5,), 5), 2)
    assert f"differences of val/loss of at least {smallest:.2g} standard deviations of a paired difference" in power
    assert "confirm.sd, 0.02, from runs of 124M, is of the full setting and does not hold at this scale" in power
    assert not [line for line in rest if "WARNING" in line]
    (own,) = load_sweeps(file, {"confirm.sd": 0.3}, factor=0.1)  # of runs at this scale
    power, *rest = describe_power(own)
    assert "by a standard deviation of 0.3 of a paired difference over seeds" in power
    assert "124M" not in power
    (warning,) = [line for line in rest if "WARNING" in line]
    assert "confirm.effect, 0.01, is less than these seeds can detect" in warning


def test_without_a_standard_deviation_the_plan_tells_differences_in_units_of_it(tiny_settings):
    lines = lines_of(tiny_settings, 4)
    smallest = find_smallest_difference(1, Looks((4,), 4), 2)
    assert any(f"differences of val/loss of at least {smallest:.2g} standard deviations" in line for line in lines)
    assert not [line for line in lines if "WARNING" in line]


def test_seeds_that_are_added_are_told_with_the_most_there_may_be(tiny_settings):
    lines = lines_of(tiny_settings, {"min": 3, "max": 12}, effect=0.05)
    (fresh,) = [line for line in lines if "on the fresh seeds 1, 2, 3, and one more at a time, at most 12" in line]
    assert fresh.endswith("until each arm is better, worse or within 0.05 of the baseline")
    assert any(line.startswith("12 seeds, 2 comparisons") for line in lines)
    assert any(line.startswith("to do: 27 trials, ") for line in lines)  # 3 x (2 of a search, 4 of candidates, 3 seeds)
    more = "12 further selection runs, 27 further fresh seeds, 126 challenge runs"  # 3 x (6 x 3 + 2 x 12)
    assert f"at most 165 more: {more}" in lines


def test_one_or_two_seeds_give_figures(tiny_settings):
    for seeds, words in ((1, "one seed gives figures but no verdict"), (2, "two seeds give figures but no verdict")):
        assert any(line.startswith(words) for line in lines_of(tiny_settings, seeds))
    assert not [line for line in lines_of(tiny_settings, 0) if "seed" in line]


def test_the_plan_of_gpus_counts_the_runs_after_the_search(tiny_settings):
    tree = {
        "name": "planned",
        "experiment": tiny_settings,
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        "search": {"optimizer.lr": [1e-3, 1e-2]},
        "sampler": "grid",
        "confirm": {"seeds": {"min": 3, "max": 5}, "effect": 0.1},
    }
    found = plan_sweep(Sweep.from_tree(tree), Assumed(find_gpu("h100-80gb")))
    sure, more = {"search": 2, "selection": 4, "confirmation": 3}, {"selection": 4, "confirmation": 2}
    for cost in found.arms:
        assert {stage: count for stage, count in cost.left.runs.items() if count} == sure
        assert {stage: count for stage, count in cost.left.more.items() if count} == more
        assert (cost.left.sure, cost.left.at_most) == (9, 15)
    assert found.items == 2 * (2 + 8 + 5) * 12 * 4 * 32
    assert found.gpu_hours[0] == pytest.approx(found.gpu_hours[1] * (2 + 4 + 3) / (2 + 8 + 5))
    assert found.unassigned == {"extension": 0, "challenge": 2 * (6 * 3 + 2 * 5)}
    assert found.to_dict()["power"] == list(found.power)
    assert any("selection seeds" in line for line in found.power)


def test_what_was_chosen_and_run_is_not_planned_again(store, tiny_settings):
    tree = {
        "name": "planned",
        "experiment": tiny_settings,
        "search": {"optimizer.lr": [1e-3, 1e-2]},
        "sampler": "grid",
        "confirm": {"seeds": 1, "selection_seeds": 1},
    }
    assert "to do: 5 trials" in plan(Sweep.from_tree(tree), 1, None)
    sweep(Sweep.from_tree(tree), console=Console(quiet=True))
    (row,) = read_statuses("planned")
    assert (row["selected"], row["selection_target"], row["confirmed"], row["confirm_target"]) == (2, 2, 1, 1)
    more = Sweep.from_tree({**tree, "confirm": {"seeds": 3}})
    text = plan(more, 1, None)
    assert "to do: 2 trials" in text
    assert "to choose among candidates" not in text


HEAVY = ["mlflow", "sqlalchemy"]  # an update is timed by Lightning, which imports torchmetrics and what that knows


def test_a_dry_run_times_an_update_and_imports_nothing_that_it_does_not_need(tmp_path):
    code = f"""
import sys
from ablate.cli import main
assert main(["sweep", "demo", "--dry-run"]) == 0
assert not {{*{HEAVY}}} & {{*sys.modules}}
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"to do: 57 trials, .*; about [\d.]+ (s|min|h)( to [\d.]+ (s|min|h))? with 1 at a time", done.stdout
    )


ARMS = {
    "pre": {"norm": "pre"},
    "post": {"norm": "post"},
    "lns": {"norm": "lns"},
    "large": {"init": {"kind": "normal", "std": 4.0}},
}


@pytest.fixture
def outlying(tiny_settings):
    tree = {"name": "starts", "experiment": tiny_settings, "factor": ["norm", "init"], "arms": ARMS}
    return Sweep.from_tree({**tree, "sampler": "grid", "search": {"optimizer.lr": [1e-3]}})


def test_the_plan_names_the_arm(store, outlying):
    norms = measure_initial_gradients(outlying, RUNNER.prepare(outlying))
    assert norms["large"] > 10 * max(norms[arm] for arm in ("pre", "post", "lns"))
    warnings = [line.strip() for line in plan(outlying, 1, None).splitlines() if "gradient at initialisation" in line]
    assert [line.split(":")[1].strip() for line in warnings] == ["large"]
    assert warnings == list(describe_outlying_gradients(norms))


def test_ten_times_the_median_of_the_others_either_way_is_told():
    def name(norms):
        return [line.split(":")[1].strip() for line in describe_outlying_gradients(norms)]

    assert name({"a": 1.0, "b": 2.0, "c": 3.0}) == []
    assert name({"a": 1.0, "b": 1.0, "c": 10.0}) == ["c"]
    assert name({"a": 1.0, "b": 1.0, "c": 0.1}) == ["c"]
    assert name({"a": 1.0, "b": 1.0, "c": 9.9}) == []
    assert name({"a": 1.0}) == []
    assert name({"a": 1.0, "b": 1.2, "c": float("nan")}) == ["c"]
    assert name({"a": 1.0, "b": 100.0, "c": float("inf")}) == ["c", "a", "b"]
    assert name({"a": float("nan")}) == ["a"]
    (line,) = describe_outlying_gradients({"a": 1.0, "b": 1.5, "c": 50.0, "d": 60.0})  # two groups: one line, not four
    assert "from 1.000 (a) to 60.000 (d)" in line


@pytest.mark.addons
def test_arms_that_start_from_another_model_are_left_out(store, tiny_settings):
    arms = {"base": {}, "reused": {"warm_start": {"from": "sweep:/base", "copy": ["embedding"]}}}
    tree = {"name": "donors", "experiment": tiny_settings, "arms": arms, "sampler": "grid"}
    spec = Sweep.from_tree({**tree, "search": {"optimizer.lr": [1e-3]}})
    assert list(measure_initial_gradients(spec, RUNNER.prepare(spec))) == ["base"]


def test_an_arm_that_is_too_large_and_cannot_be_narrowed_is_left_out_of_the_warnings(store, outlying, monkeypatch):
    monkeypatch.setattr(initial_gradient, "MOST_WEIGHTS", 100)
    tree = outlying.to_tree()
    grouped = {**ARMS["pre"], "norm.layer": {"kind": "groupnorm", "groups": 8}}
    large = Sweep.from_tree({**tree, "arms": {"pre": ARMS["pre"], "grouped": grouped}, "factor": ["norm"]})
    assert list(measure_initial_gradients(large, RUNNER.prepare(large))) == ["pre"]
