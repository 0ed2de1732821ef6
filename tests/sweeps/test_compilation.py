"""Whether the trials of a sweep are compiled: one choice for all of them, which the sweep keeps."""

import pytest
from rich.console import Console

from ablate.sweeps import preparation
from ablate.sweeps.compilation import choose_for_sweep, list_runs
from ablate.sweeps.dry_run import plan
from ablate.sweeps.preparation import open_sweep, read_compilation
from ablate.sweeps.run import sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import storage_url
from ablate.tracking.facts import read_facts
from ablate.training import compilation
from ablate.training.compilation import Compilation


@pytest.fixture
def spec(tiny_settings):
    """A function that returns a sweep of tiny trials; `settings` of its experiment, and keys of the file."""

    def build(settings=None, **keys):
        tree = {
            "name": "compiled",
            "experiment": {**tiny_settings, "norm": "pre", **(settings or {})},
            "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            "sampler": "random",
            "budget": {"trials": 1},
        }
        return Sweep.from_tree({**tree, **keys})

    return build


@pytest.fixture
def load(store):
    """A function that returns the data of a sweep's arms."""
    return preparation.check_sweep


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A CPU with a compiler."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(compilation, "has_compiler", lambda: True)


ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}


def test_all_runs_that_are_sure_to_come_are_counted(spec, load):
    """20 trials, three candidates on two selection seeds each, and four fresh seeds; of two arms."""
    confirm = {"candidates": 3, "selection_seeds": 2, "seeds": 4, "effect": 0.1, "sd": 0.1}
    searched = spec(arms=ARMS, budget={"trials": 20}, confirm=confirm)
    assert [(run.experiment.norm.kind, run.count) for run in list_runs(searched, load(searched))] == [
        ("pre", 20 + 3 * 2 + 4),
        ("post", 20 + 3 * 2 + 4),
    ]


def test_trials_of_other_lengths_and_shapes_count_by_what_they_are(spec, load):
    grid = spec(
        search={"optimizer.lr": [1e-3, 1e-2], "trainer.max_steps": [12, 36]}, sampler="grid", budget={"trials": 4}
    )
    runs = list(list_runs(grid, load(grid)))
    assert [(run.experiment.trainer.max_steps, run.count) for run in runs] == [(12, 2), (36, 2)]


def test_what_no_trial_alone_would_save_many_save_together(spec, load, monkeypatch):
    """A trial of 2 s saves 0.3 s; what compiling costs is paid once, and a little for each placement."""
    monkeypatch.setattr(compilation.Runs, "seconds", 2.0)

    def choose(trials, arms=ARMS):
        chosen = spec(arms=arms, budget={"trials": trials})
        return choose_for_sweep(chosen, load(chosen))

    cost = compilation.FIRST_SECONDS + 2 * compilation.FURTHER_SECONDS
    enough = cost / (2.0 * compilation.SAVED) / 2
    assert not choose(int(enough) - 5).compiles
    few, many = choose(int(enough) - 5), choose(int(enough) + 5)
    assert (few.compiles, many.compiles) == (False, True)
    assert f"{cost} s" in few.why
    assert f"{cost} s" in many.why
    assert "all" in many.why


def test_trials_whose_settings_say_it_leave_nothing_to_choose(spec, load):
    fixed = spec({"trainer.compile": False})
    assert choose_for_sweep(fixed, load(fixed)) is None


def test_models_that_would_be_unrolled_are_compiled_in_no_arm(spec, load):
    recurrent = spec(
        {"model": {"kind": "gru", "hidden": 16, "layers": 2}, "norm": "summed_inputs"}, budget={"trials": 500}
    )
    choice = choose_for_sweep(recurrent, load(recurrent))
    assert not choice.compiles
    assert "write out the steps" in choice.why


def test_the_choice_is_made_once_and_kept_for_all_arms(spec, store, monkeypatch):
    chosen = iter([Compilation(True, "the first time"), Compilation(False, "the second time")])
    monkeypatch.setattr(preparation, "choose_for_sweep", lambda *_: next(chosen))
    url = storage_url()
    *_, arms, _ = open_sweep(spec(arms=ARMS), url, False, 1)
    assert [arm.read_notes()["compilation"]["compiles"] for arm in arms] == [True, True]
    more = spec(arms=ARMS, budget={"trials": 50})  # which would be another choice
    *_, arms, _ = open_sweep(more, url, False, 1)
    assert read_compilation(arms) == Compilation(True, "the first time")
    assert "compile  yes: the first time" in plan(more, 1, url)
    *_, arms, _ = open_sweep(more, url, True, 1)
    assert read_compilation(arms) == Compilation(False, "the second time")


def test_a_sweep_that_was_begun_without_a_choice_goes_on_without(spec, store, monkeypatch):
    monkeypatch.setattr(preparation, "choose_for_sweep", lambda *_: None)  # as sweeps were begun before
    *_, (arm,), _ = open_sweep(spec(), storage_url(), False, 1)
    arm.ask()
    monkeypatch.setattr(preparation, "choose_for_sweep", lambda *_: pytest.fail("a choice is made"))
    *_, arms, _ = open_sweep(spec(), storage_url(), False, 1)
    assert read_compilation(arms) is None


def test_trials_are_trained_as_the_sweep_has_chosen(spec, store, monkeypatch):
    choice = Compilation(False, "chosen for all")
    monkeypatch.setattr(preparation, "choose_for_sweep", lambda *_: choice)
    record = sweep(spec(), console=Console(quiet=True))
    assert record.compilation == choice
    (run,) = record.list_runs()
    assert "eager (chosen for all)" in read_facts(run.run_id)["ablate.speed"]
