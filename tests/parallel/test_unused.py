"""DDP looks for parameters without a gradient where there may be some, or where its order of sums would show."""

from typing import Literal

import pytest
import torch
from norms.cases import RESIDUAL
from torch import nn

from ablate.experiment.extensions import restrict
from ablate.experiment.tree import Experiment
from ablate.norms import Placement, placements
from ablate.parallel.strategies import Ddp, must_find_unused
from ablate.parallel.unused import leaves_unused

SHAPES = {"llama": (16,), "vit": (1, 8, 8)}


class Idle(nn.Module):
    def __init__(self, norm, looks):
        super().__init__()
        self.norm, self.idle, self.looks = norm, nn.Parameter(torch.ones(1)), looks

    def forward(self, x, f, *args):
        if self.looks and x.sum() > 0:
            return x
        return x + f(self.norm(x), *args) * (self.idle if self.looks else 1)


class Own(Placement):
    """Has a parameter that no step uses, or only steps whose numbers say so."""

    kind: Literal["own"] = "own"
    looks: bool = False
    """Whether it looks at numbers."""
    rule = "x + f(N(x))"
    source = "this test"

    def residual(self, site):
        return Idle(site.norm(), self.looks)


def experiment(family="llama", **settings):
    sizes = {"model": {"kind": family, "hidden": 16, "layers": 2, "heads": 2}}
    return Experiment.from_mapping(sizes, {key.replace("__", "."): value for key, value in settings.items()})


def looked_at(run, family="llama"):
    """Whether a step of the run leaves a parameter unused."""
    model = run.build_model(11, SHAPES[family])
    restrict(model, run)
    return leaves_unused(model, run.task, 11, SHAPES[family])


@pytest.mark.parametrize("family", RESIDUAL)
@pytest.mark.parametrize("kind", placements)
def test_every_parameter_of_ours_has_a_gradient(family, kind):
    assert not looked_at(experiment(family, norm=kind), family)


@pytest.mark.parametrize("looks", [False, True])
def test_a_parameter_that_may_be_left_out_is_found(registries, looks):
    placements.register(Own)
    assert looked_at(experiment(norm={"kind": "own", "looks": looks}))


def test_what_is_not_trained_needs_no_gradient():
    run = experiment(warm_start={"from": "RUN", "copy": ["all"], "freeze": ["embedding"]})
    assert not looked_at(run)


def test_the_model_is_not_changed_by_the_look():
    """Neither its weights nor its running averages, and it keeps no gradient."""
    run = experiment("vit", norm={"kind": "pre", "layer": "batchnorm"})
    model = run.build_model(11, SHAPES["vit"]).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert not leaves_unused(model, run.task, 11, SHAPES["vit"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.training


def test_on_gpus_ddp_looks_only_where_it_must(monkeypatch, tmp_path):
    run = experiment(data__seq_len=16)
    corpus = run.data.load(tmp_path)
    model = run.build_model(corpus.classes, corpus.shape)
    assert must_find_unused(model, run, corpus)  # on the CPU a run goes on bit for bit, and sums in one order
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not must_find_unused(model, run, corpus)
    assert Ddp("32-true", False)._ddp_kwargs == {"find_unused_parameters": False, "gradient_as_bucket_view": True}
