"""How often a run builds its model."""

import pytest

from ablate import tracking
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train


@pytest.fixture
def builds(monkeypatch):
    """The seeds of the runs whose model was built, on any device, one for each time."""
    seeds, build = [], Experiment.build_model

    def count(experiment, *inputs):
        seeds.append(experiment.seed)
        return build(experiment, *inputs)

    monkeypatch.setattr(Experiment, "build_model", count)
    return seeds


def test_a_run_and_its_resumption_build_the_model_once_each(store, family_settings, builds):
    """To choose its arithmetic, to count its FLOPs and to check a checkpoint takes no further model."""
    asked = iter(range(100))
    run = Experiment.from_mapping(family_settings, {"seed": 7, "trainer.activation_checkpointing": True})
    stopped = train(run, hooks=Hooks(asked_to_stop=lambda: next(asked) == 2))
    assert (stopped.status, builds) == ("interrupted", [7])
    ended = train(run, Place(run_id=stopped.run_id))
    assert (ended.status, builds) == ("completed", [7, 7])
    tags = tracking.client().get_run(ended.run_id).data.tags
    assert int(tags["ablate.parameters"]) == sum(
        p.numel() for p in run.build_model(*inputs_of(run, store)).parameters()
    )


def inputs_of(run, store):
    """Classes and shape of the data of `run`."""
    corpus = run.data.load(store)
    return corpus.classes, corpus.shape
