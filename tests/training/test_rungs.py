"""Runs that pause at rungs, against runs that nobody stops: bit for bit."""

import pytest
import torch

from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place
from ablate.training.rungs import BRANCHED, build_rung
from ablate.training.runs import CHECKPOINT, load_experiment, run_folder
from ablate.training.train import LIGHTNING, train

WSD = {"kind": "wsd", "warmup_steps": 2, "decay_fraction": 0.25}
LENGTH, RUNGS = 24, (6, 13)  # whose decays begin after 4 (6 - 2), 10 (13 - 3) and 18 updates
KINDS = {
    "llama": {"schedule": WSD},
    "accumulated, averaged, and validated where it pauses": {
        "schedule": WSD,
        "trainer": {"accumulate": 2, "ema_decay": 0.9, "val_check_interval": 5},
    },
    "cosine": {"schedule": "cosine"},
    "with random masks": {"schedule": WSD, "model": {"kind": "vit", "drop_path": 0.3}},
}


@pytest.fixture
def build(tiny_settings, vit_settings):
    """build(kind of KINDS, dotted path -> value): a run."""

    def build(kind, **more):
        base = vit_settings if "model" in KINDS[kind] else tiny_settings
        return Experiment.from_mapping(base, {"trainer": {"max_steps": LENGTH}}, KINDS[kind], more)

    return build


def load_state(run_id):
    """The checkpoint of a run."""
    return torch.load(run_folder(run_id) / CHECKPOINT, weights_only=True)


def assert_same(one, other, path=""):
    """Every tensor and number of two nested states is the same, to the last bit."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_same(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for i, pair in enumerate(zip(one, other, strict=True)):
            assert_same(*pair, f"{path}/{i}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    else:
        assert one == other, path


def compare_states(one, other):
    """What a run goes on from is the same in two checkpoints, its history included; times are not."""
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step"):
        assert_same(one[key], other[key], key)
    for key in ("history", "generators", "average"):
        for name in one["callbacks"].keys() & other["callbacks"].keys():
            if key in one["callbacks"][name]:
                assert_same(one["callbacks"][name][key], other["callbacks"][name][key], f"{name}/{key}")


def climb(experiment, hooks=None):
    """The results of a run at each rung, and of its end."""
    results = [train(experiment, hooks=hooks, procedure=build_rung(LIGHTNING, RUNGS[0]))]
    place = Place(run_id=results[0].run_id)
    results += [train(experiment, place, hooks, build_rung(LIGHTNING, updates)) for updates in RUNGS[1:]]
    return [*results, train(experiment, place, hooks)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_rungs_is_the_run_that_nobody_stops(store, build, kind):
    experiment = build(kind)
    *rungs, last = climb(experiment)
    whole = train(experiment)
    assert last.status == whole.status == "completed"
    assert last.metrics == whole.metrics
    assert last.step == LENGTH
    compare_states(load_state(last.run_id), load_state(whole.run_id))
    for updates, rung in zip(RUNGS, rungs, strict=True):
        assert rung.status == "paused"
        short = train(experiment.shorten(updates))
        assert rung.metrics == short.metrics
        assert short.step == updates
        assert rung.facts[BRANCHED] == updates - rung.step
        assert not (run_folder(last.run_id) / "branch").exists()
    starts = [0, 0] if kind == "cosine" else [4, 10]
    assert [rung.step for rung in rungs] == starts


def test_what_a_rung_measures_is_logged_beside_the_curve_of_the_run(store, build):
    from ablate import tracking

    experiment = build("llama")
    first = train(experiment, procedure=build_rung(LIGHTNING, RUNGS[0]))
    run = tracking.client().get_run(first.run_id)
    assert run.info.status == "SCHEDULED"
    assert run.data.tags["ablate.status"] == "paused"
    (point,) = tracking.client().get_metric_history(first.run_id, "rung/val/loss")
    assert point.value == pytest.approx(first.metrics["val/loss"])
    assert point.step == RUNGS[0] * experiment.items_per_update


@pytest.mark.parametrize("stopped", [2, 8])
def test_a_stop_between_two_rungs_changes_nothing(store, build, stopped):
    """On the way to the second rung: in the run itself, and in the copy that decays from the tenth update on."""
    experiment = build("llama")
    first = train(experiment, procedure=build_rung(LIGHTNING, RUNGS[0]))
    place, second = Place(run_id=first.run_id), build_rung(LIGHTNING, RUNGS[1])
    asked = iter(range(1, 100))
    broken = train(experiment, place, Hooks(asked_to_stop=lambda: next(asked) == stopped), second)
    assert broken.status == "interrupted"
    assert load_experiment(first.run_id, {}) == experiment
    again = train(experiment, place, procedure=second)
    assert again.status == "paused"
    assert again.metrics == train(experiment.shorten(RUNGS[1])).metrics
    assert train(experiment, place).metrics == train(experiment).metrics


def test_a_rung_can_diverge_on_either_part(store, build):
    experiment = build("llama", **{"optimizer.lr": 1e9, "trainer.log_every_n_steps": 1})
    assert train(experiment, procedure=build_rung(LIGHTNING, RUNGS[0])).status == "diverged"
    cosine = build("cosine", **{"optimizer.lr": 1e9, "trainer.log_every_n_steps": 1})
    assert train(cosine, procedure=build_rung(LIGHTNING, RUNGS[0])).status == "diverged"
