"""Fixtures that several folders share: tiny models of every family, and registries that a test may add to."""

import pytest
import torch

from ablate.config import Experiment
from ablate.registry import Registry

torch.set_num_threads(1)  # the models are tiny: a second thread costs more than it does, most of all beside other work

CLASSES = 11
SHAPES = {"language_modeling": (12,), "image_classification": (1, 8, 8)}  # of one input, by task


@pytest.fixture
def registries(monkeypatch):
    """All registries by name. What a test registers is forgotten after it."""
    for registry in Registry.all.values():
        monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
        monkeypatch.setattr(registry, "_presets", dict(registry._presets))
    monkeypatch.setattr(Registry, "all", dict(Registry.all))
    return Registry.all


@pytest.fixture
def tiny():
    """tiny(family, {dotted path: value}, seed) -> (experiment, model in float64, a batch of 3 inputs)."""

    def build(family, settings=None, seed=0):
        sizes = {"model": {"kind": family, "hidden": 16, "layers": 3, "heads": 2}}
        experiment = Experiment.from_mapping(sizes, settings or {})
        shape = SHAPES[experiment.model.task]
        torch.manual_seed(seed)
        model = experiment.model.build(experiment.norm, experiment.init, CLASSES, shape).double()
        generator = torch.Generator().manual_seed(7)
        if experiment.model.task == "language_modeling":
            inputs = torch.randint(CLASSES, (3, *shape), generator=generator)
        else:
            inputs = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
        return experiment, model, inputs

    return build
