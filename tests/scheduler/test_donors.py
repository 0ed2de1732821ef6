"""What a sweep takes from others: chosen settings, source runs and reward models."""

from __future__ import annotations

import json

import pytest

import ablate
from ablate.cli import main
from ablate.config.errors import ConfigError, SweepError
from ablate.scheduler.donors import resolve_run, take_over
from ablate.scheduler.storage import open_storage, storage_url
from ablate.scheduler.studies import create_study, name_study
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.sweeps import simulate


@pytest.fixture
def best_is_b(store):
    """Two arms; the second has no completed trial."""
    tree = {"name": "demo", "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}}, "budget": {"trials": 3}}
    spec, storage = Sweep.from_tree({**tree, "search": {"optimizer.lr": [1e-3, 1e-2]}}), open_storage(storage_url())
    pre, _ = (create_study(storage, name_study("demo", 1, arm), spec) for arm in spec.arms)
    for value, run_id in ((2.0, "a"), (1.5, "b"), (1.8, "c")):
        trial = pre.ask()
        trial.set_user_attr("run_id", run_id)
        pre.tell(trial, value)


@pytest.mark.filterwarnings("ignore:Heartbeat")
@pytest.mark.usefixtures("best_is_b")
@pytest.mark.parametrize("given", ["sweep:demo/pre", "sweep:demo@1/pre"])
def test_the_best_trial(given):
    assert resolve_run(given) == "b"


def test_anything_else_stays(store):
    assert resolve_run("mlruns/runs/a/last.ckpt") == "mlruns/runs/a/last.ckpt"


@pytest.mark.filterwarnings("ignore:Heartbeat")
@pytest.mark.usefixtures("best_is_b")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sweep:demo/per", "has the arms pre, mix. Did you mean pre?"),
        ("sweep:demo/mix", "no trial of the arm is completed"),
        ("sweep:dmo/pre", "Did you mean demo?"),
    ],
)
def test_what_is_not_there(given, expected):
    with pytest.raises(SweepError, match=expected.replace("?", r"\?")):
        resolve_run(given)


SMALL = {
    "name": "small",
    "experiment": {
        "model": {"kind": "llama", "hidden": 16, "layers": 2, "heads": 1, "mlp": 32},
        "data": {"kind": "topics", "seq_len": 32},
        "trainer": {"max_steps": 20, "batch_size": 8, "val_check_interval": 20},
    },
    "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.5, 1.0]}}},
    "search": {"optimizer.lr": [1e-3, 2e-3, 4e-3]},
    "sampler": "grid",
    "confirm": {"seeds": 3, "selection_seeds": 1},
}
LARGE = {
    **SMALL,
    "name": "large",
    "experiment": {**SMALL["experiment"], "model": {**SMALL["experiment"]["model"], "hidden": 32}},
    "settings_from": "small",
}
BEST = {"pre": {"optimizer.lr": 2e-3}, "mix": {"optimizer.lr": 4e-3, "norm.alpha": 0.5}}


def lose(arm, params, seed):
    return (
        2
        + sum(params.get(path, value) != value for path, value in BEST[arm].items())
        + 0.01 * seed
        + 0.1 * (arm == "mix")
    )


def run(tree, fresh_runs=None):
    spec = take_over(Sweep.from_tree(tree), storage_url())
    return simulate(spec, lose, open_storage(storage_url()), fresh_runs)


@pytest.fixture
def small(store):
    return run(SMALL)


def test_each_arm_is_tested_at_the_settings_that_were_chosen_for_it(small):
    spec = take_over(Sweep.from_tree(LARGE), storage_url())
    assert spec.taken_over.model_dump() == {"sweep": "small@1", "settings": BEST, "seeds": [0, 1001]}
    assert {arm: spec.base(arm).flat()["optimizer.lr"] for arm in spec.all_arms} == {"pre": 2e-3, "mix": 4e-3}
    assert spec.base("mix").norm.alpha == 0.5
    assert spec.base("mix").model.hidden == 32
    assert (spec.search, spec.at_grid, spec.confirm.seeds) == ({}, True, 3)
    assert take_over(spec, "sqlite:///gone.db") == spec  # known when it began


def test_a_file_needs_no_search_of_its_own(small):
    tree = {key: value for key, value in LARGE.items() if key not in ("search", "sampler")}
    tree["arms"] = {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}}
    assert take_over(Sweep.from_tree(tree), storage_url()).taken_over.settings == BEST


def test_plan_report_and_continuing(small, write_sweep, capsys):
    path = str(write_sweep(LARGE))
    told = "Nothing was tuned here: each arm has the settings that small@1 chose for it (pre lr=0.002, mix"
    assert main(["sweep", path, "--dry-run"]) == 0
    planned = " ".join(capsys.readouterr().out.split())
    assert told in planned
    assert "to do: 6 trials" in planned
    record = run(LARGE)
    assert told in ablate.report(record).verdict
    assert main(["report", "large", "--json"]) == 0
    assert told in json.loads(capsys.readouterr().out)["verdict"]
    assert main(["sweep", path, "--dry-run"]) == 0
    assert "to do: 0 trials" in capsys.readouterr().out


def test_the_outline_of_a_sweep_whose_source_is_elsewhere(store, write_sweep, tmp_path, monkeypatch, capsys):
    (tmp_path / "sweeps").mkdir()
    write_sweep(LARGE).rename(tmp_path / "sweeps" / "large.yaml")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "--all", "--dry-run"]) == 0
    assert "to do: 6 trials" in capsys.readouterr().out


def test_settings_that_were_taken_over_are_taken_over_again(small):
    run(LARGE)
    third = take_over(Sweep.from_tree({**LARGE, "name": "third", "settings_from": "large"}), storage_url())
    assert third.taken_over.model_dump() == {"sweep": "large@1", "settings": BEST, "seeds": [0, 1001]}


def test_settings_of_a_grid_are_those_of_its_best_point(store):
    run({**SMALL, "name": "grid", "confirm": {"at": "grid", "seeds": 3}})
    spec = take_over(Sweep.from_tree({**LARGE, "settings_from": "grid@1"}), storage_url())
    assert spec.taken_over.model_dump() == {"sweep": "grid@1", "settings": BEST, "seeds": [1, 2, 3]}
    assert spec.fresh_seeds() == [4, 5, 6]


def test_no_arm_is_tested_on_a_seed_on_which_its_settings_were_chosen(store):
    run({**SMALL, "experiment": {**SMALL["experiment"], "seed": 2}})
    assert Sweep.from_tree(LARGE).fresh_seeds() == [1, 2, 3]
    spec = take_over(Sweep.from_tree(LARGE), storage_url())
    assert spec.fresh_seeds() == [1004, 1005, 1006]
    assert spec.taken_over.seeds == [2, 1003]


ARMS = SMALL["arms"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"settings_from": "smal"}, "large takes its settings from smal. There is no sweep 'smal'. Sweeps: small"),
        ({"settings_from": "small@2"}, "There is no sweep 'small@2'"),
        ({"arms": {**ARMS, "post": {"norm": "post"}}}, "small has no arm post. Its arms: pre, mix"),
        ({"objective": {"metric": "val/perplexity"}}, "were chosen by val/loss .minimize., and the objective here is"),
        (
            {"search": {"optimizer.weight_decay": [0.0, 0.1]}},
            "small chose optimizer.lr for pre, and this file searches",
        ),
        (
            {"search": {}, "arms": {"pre": {"norm": "pre", "optimizer.lr": 1e-3}, "mix": {"norm": "mix"}}},
            "small chose optimizer.lr for pre, which this file sets itself",
        ),
        (
            {"arms": {**ARMS, "pre": {"norm": "lns"}}},
            "The arm pre has norm.kind lns, and pre in small: settings are taken over by the same arm alone",
        ),
    ],
)
def test_settings_that_are_not_to_be_had_or_are_of_another_arm_are_refused(small, more, message):
    with pytest.raises(SweepError, match=message):
        take_over(Sweep.from_tree({**LARGE, **more}), storage_url())


def test_a_sweep_that_has_not_ended_is_waited_for(store, write_sweep, capsys):
    run(SMALL, 1)
    assert main(["sweep", str(write_sweep(LARGE))]) == 2
    assert "large takes its settings from small. small has ended" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"confirm": {}}, "confirm.seeds: is required with settings_from"),
        ({"confirm": {"at": "grid", "seeds": 3}}, "confirm.at: settings_from leaves nothing to search"),
        (
            {"arms": {}, "components": {"norm": ["pre", "mix"]}, "design": "one-at-a-time"},
            "settings_from: goes with arms",
        ),
    ],
)
def test_what_does_not_go_with_it(more, message):
    with pytest.raises(ConfigError, match=message):
        Sweep.from_tree({**LARGE, **more})
