"""`trainer.profiler`: its output is an artifact, and no number changes."""

import pytest

from ablate import tracking
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train


def list_profile(run_id):
    return {item.path: item.file_size for item in tracking.client().list_artifacts(run_id, "profile")}


@pytest.mark.parametrize("kind", ["simple", "advanced", "pytorch"])
def test_a_profile_is_an_artifact_and_changes_no_number(store, trained_once, tiny_settings, kind):
    settings = {"trainer.max_steps": 6, "trainer.val_check_interval": 3}
    alone = trained_once(Experiment.from_mapping(tiny_settings, settings))
    result = train(Experiment.from_mapping(tiny_settings, settings, {"trainer.profiler": kind}))
    assert result.metrics == alone.metrics
    files = list_profile(result.run_id)
    assert files[f"profile/fit-{kind}.txt"] > 1000
    assert any(name.endswith(".json") for name in files) == (kind == "pytorch")  # the trace


@pytest.mark.parametrize("kind", ["simple", "advanced"])
def test_a_run_that_is_stopped_has_one_and_goes_on_with_another(store, tiny_settings, kind):
    asked = iter(range(100))
    hooks = Hooks(asked_to_stop=lambda: next(asked) == 6)
    stopped = train(Experiment.from_mapping(tiny_settings, {"trainer.profiler": kind}), hooks=hooks)
    assert f"profile/fit-{kind}.txt" in list_profile(stopped.run_id)
    rest = train(load_experiment(stopped.run_id, {"trainer.profiler": "simple"}), Place(run_id=stopped.run_id))
    assert rest.status == "completed"
    assert "profile/fit-simple.txt" in list_profile(rest.run_id)
