"""The gradient norm of an arm before its first update."""

import pytest
import torch
import torch.nn.functional as F

from ablate.experiment.tree import Experiment
from ablate.training import initial_gradient
from ablate.training.initial_gradient import measure_initial_gradient

SIZE = {"kind": "llama", "hidden": 16, "layers": 3, "heads": 2}


def load(store, tiny_settings, *settings):
    experiment = Experiment.from_mapping(tiny_settings, *settings)
    return experiment, experiment.data.load(store / "cache")


@pytest.mark.parametrize("norm", ["pre", "post", "deepnorm"])
def test_it_is_that_of_the_mean_cross_entropy_by_hand(store, tiny_settings, norm):
    experiment, corpus = load(store, tiny_settings, {"norm": norm, "model": SIZE})
    before = torch.random.get_rng_state()
    measured = measure_initial_gradient(experiment, corpus)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(experiment.seed)
    model = experiment.build_model(corpus.classes, corpus.shape)
    inputs, targets = next(iter(corpus.train.batches(8, experiment.seed)))
    F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    squares = sum((p.grad.double() ** 2).sum().item() for p in model.parameters())
    assert measured == pytest.approx(squares**0.5, rel=1e-5)


def test_a_large_model_is_measured_narrower_at_its_depth(store, tiny_settings, monkeypatch):
    experiment, corpus = load(store, tiny_settings, {"model": {**SIZE, "hidden": 32, "layers": 5}})
    weights = experiment.model.layer_parameters()
    monkeypatch.setattr(initial_gradient, "MOST_WEIGHTS", weights // 4)
    fields = experiment.model.narrowed(1 / 4)
    assert fields["hidden"] == 16
    half = Experiment.from_mapping(experiment.to_tree(), {f"model.{key}": value for key, value in fields.items()})
    measured = measure_initial_gradient(experiment, corpus)
    assert measured == measure_initial_gradient(half, corpus)
    assert half.model.layers == 5
