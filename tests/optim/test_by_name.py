"""Every optimizer of torch and timm that is accepted: it trains each parameter, its memory is what the plan counts, and
what its state restores goes on exactly."""

import io
import math

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ablate.config.errors import ConfigError
from ablate.estimate.updates import measure_update
from ablate.experiment.tree import Experiment
from ablate.models.base import Model
from ablate.optim.libraries import TIMM, TORCH
from ablate.optim.optimizers import build_optimizer, optimizers

LIBRARIES = {library.name: library for library in (TORCH, TIMM)}
ACCEPTED = [(kind, name) for kind, library in LIBRARIES.items() for name in library.accepted]
REFUSED = [
    (kind, name)
    for kind, library in LIBRARIES.items()
    for name, entry in library.entries.items()
    if entry.refused is not None
]


class Tiny(Model):
    """An embedding, a matrix of two that are fused, another, a norm and a head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 18)
        self.fused = nn.Linear(18, 34)
        self.down = nn.Linear(34, 18, bias=False)
        self.norm = nn.LayerNorm(18)
        self.head = nn.Linear(18, 20, bias=False)
        self.layers = nn.ModuleList([self.down])

    def parts(self):
        return {"embedding": ("embed",), "head": ("head",)}

    def embeddings(self):
        return ("embed",)

    def blocks(self):
        return self.layers

    def projections(self):
        from ablate.norms import Projection

        for role, weight in zip(("gate", "up"), self.fused.weight.split([16, 18]), strict=True):
            yield Projection(role, 0, weight)
        yield Projection("down", 0, self.down.weight)


def step(model, optimizer, number):
    """One update with gradients that depend on `number` alone; the optimizer computes them in its closure."""

    def closure():
        generator = torch.Generator().manual_seed(number)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        return torch.tensor(1.0)

    assert optimizer.step(closure) == 1.0


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("kind", "name"), ACCEPTED)
def test_all_move_the_plan_counts_the_state_and_a_restored_one_goes_on_exactly(kind, name):
    decay = {"weight_decay": 0.1} if LIBRARIES[kind].entries[name].has_weight_decay else {}
    config = optimizers[kind](name=name, lr=0.05, groups={"head": {"lr_factor": 0.5}}, **decay)
    assert config.validate(sharded=False) == []
    model = Tiny()
    optimizer, before = build_optimizer(config, model), weights(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert (rates[0], min(rates)) == (0.05, 0.025)
    step(model, optimizer, 0)
    step(model, optimizer, 1)  # ADOPT's first only looks at the gradient
    assert [n for n, p in model.named_parameters() if torch.equal(p, before[n])] == []

    kept = [v for p in model.parameters() for v in tree_leaves(optimizer.state[p]) if isinstance(v, torch.Tensor)]
    planned = measure_update(Tiny().to("meta"), config, half=False).states
    trained = sum(p.nbytes for p in model.parameters())
    assert planned * trained == pytest.approx(sum(value.nbytes for value in kept if value.ndim))

    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    again = Tiny()
    again.load_state_dict(model.state_dict())
    restored = build_optimizer(config, again)
    restored.load_state_dict(torch.load(file, weights_only=True))
    for number in (2, 3):
        step(model, optimizer, number)
        step(again, restored, number)
    whole, rest = weights(model), weights(again)
    assert [n for n in whole if not torch.equal(whole[n], rest[n])] == []


@pytest.mark.parametrize(("kind", "name"), REFUSED)
def test_what_cannot_work_is_refused_with_the_reason(kind, name):
    (problem,) = optimizers[kind](name=name).validate(sharded=False)
    assert problem.path == "name"
    assert problem.message.startswith("cannot be used here: it ")


def test_the_optimizers_that_need_a_closure_sparse_gradients_second_derivatives_or_luck_are_refused():
    assert {("torch", "LBFGS"), ("torch", "SparseAdam"), ("timm", "adahessian"), ("timm", "kron")} <= {*REFUSED}


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "torch", "name": "SGD", "momentum": 0.9, "nesterov": True},
        {"kind": "torch", "name": "AdamW", "amsgrad": False},
        {"kind": "torch", "name": "AdamW", "foreach": None},
        {"kind": "timm", "name": "muon", "nesterov": True},
        {"kind": "timm", "name": "lamb", "max_grad_norm": None},
    ],
)
def test_true_false_and_null_are_accepted_where_the_library_takes_them(settings):
    optimizer = Experiment.from_mapping({f"optimizer.{key}": value for key, value in settings.items()}).optimizer
    assert {**settings, **optimizer.model_extra} == settings


@pytest.mark.parametrize(
    ("settings", "path", "text"),
    [
        ({"kind": "torch", "name": "SGD", "momentum": math.nan}, "momentum", "must be a finite number"),
        ({"kind": "torch", "name": "AdamW", "foreach": "no"}, "foreach", "must be true or false"),
        ({"kind": "torch", "name": "adamw"}, "name", "Accepted: .*AdamW.* Did you mean AdamW?"),
        ({"kind": "timm", "name": "lyon"}, "name", "Did you mean lion?"),
        ({"kind": "timm"}, "name", "is required"),
        ({"kind": "timm", "name": "lion", "beta": 1}, "beta", "lion of timm has no such argument. Accepted: betas, "),
        ({"kind": "timm", "name": "lion", "beta": 1}, "beta", "Did you mean betas?"),
        ({"kind": "torch", "name": "SGD", "nesterov": 1}, "nesterov", "must be true or false"),
        ({"kind": "torch", "name": "SGD", "momentum": "much"}, "momentum", "must be a number"),
        ({"kind": "torch", "name": "SGD", "fused": "yes"}, "fused", "must be true or false"),
        ({"kind": "torch", "name": "Adam", "betas": [0.9]}, "betas", "must be a list of 2 values"),
        ({"kind": "torch", "name": "Adam", "betas": [0.9, 1.5]}, "", "Invalid beta parameter at index 1"),
        ({"kind": "timm", "name": "muon", "adjust_lr_fn": "much"}, "", "Invalid scaling function"),
        ({"kind": "timm", "name": "muon", "ns_coefficients": [[1, 2]]}, "ns_coefficients", "must be "),
        ({"kind": "torch", "name": "SGD", "params": 3}, "params", "no such argument"),
        ({"kind": "torch", "name": "Rprop", "weight_decay": 0.1}, "weight_decay", "has no weight decay"),
        ({"kind": "timm", "name": "lamb", "aux_lr": 0.1}, "aux_lr", "aux_lr applies only to Muon"),
        (
            {"kind": "torch", "name": "SGD", "groups": {"norm": {}}},
            "groups.norm",
            "Did you mean optimizer.groups.norms",
        ),
        ({"kind": "adamw", "groups.norms.lr_factor": 0}, "groups.norms.lr_factor", "must be greater than 0"),
        ({"kind": "adamw", "momentum": 0.9}, "momentum", "unknown key"),
    ],
)
def test_what_is_wrong_is_told_with_what_is_accepted(settings, path, text):
    with pytest.raises(ConfigError) as caught:
        Experiment.from_mapping({f"optimizer.{key}": value for key, value in settings.items()})
    (problem,) = caught.value.problems
    assert problem.path == f"optimizer.{path}".rstrip(".")
    head, _, tail = text.partition(".*")
    assert head in problem.message
    assert all(part in problem.message for part in tail.split(".*"))


def test_all_mistakes_are_told_at_once():
    tree = {"optimizer": {"kind": "timm", "name": "lion", "lr": -1, "beta": 1, "caution": 3}, "norm.alpha": 1}
    with pytest.raises(ConfigError) as caught:
        Experiment.from_mapping(tree)
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"norm.alpha", "optimizer.lr", "optimizer.beta", "optimizer.caution"}


@pytest.mark.parametrize("name", ["lamb", "adamp", "cadamw", "lars", "adafactor"])
def test_what_looks_at_whole_parameters_is_refused_with_fsdp(name):
    with pytest.raises(ConfigError, match="needs whole parameters"):
        Experiment.from_mapping({"optimizer": {"kind": "timm", "name": name}, "trainer.strategy": "fsdp"})


SHARDED = [
    ("timm", "lion"),
    ("timm", "adopt"),
    ("torch", "SGD"),
    ("torch", "NAdam"),
    ("torch", "Muon"),
    ("timm", "muon"),
]


@pytest.mark.parametrize(("kind", "name"), SHARDED)
def test_what_updates_each_weight_by_itself_or_takes_turns_is_sharded(kind, name):
    assert optimizers[kind](name=name).validate(sharded=True) == []


@pytest.mark.parametrize(
    "settings", [{"kind": "torch", "name": "SGD", "momentum": 0.5}, {"kind": "timm", "name": "adan"}]
)
def test_arguments_reach_the_optimizer_and_the_stored_configuration(settings):
    more = {"betas": [0.9, 0.8, 0.7]} if settings["kind"] == "timm" else {}
    experiment = Experiment.from_mapping({"optimizer": {**settings, **more}})
    assert Experiment.from_mapping(experiment.to_tree()) == experiment
    assert Experiment.from_mapping(experiment.flat()) == experiment
    (group, *_) = build_optimizer(experiment.optimizer, Tiny()).param_groups
    assert group.get("momentum", 0.5) == 0.5
    assert group.get("betas", (0.9, 0.8, 0.7)) == (0.9, 0.8, 0.7)


def test_a_new_kind_keeps_what_both_have():
    base = {"optimizer": {"kind": "adamw", "lr": 0.5, "betas": [0.5, 0.6], "eps": 1e-3, "weight_decay": 0.2}}
    adam = Experiment.from_mapping(base, {"optimizer": "adam"}).optimizer
    assert (adam.lr, adam.betas, adam.eps, adam.weight_decay) == (0.5, (0.5, 0.6), 1e-3, 0.2)
    lion = Experiment.from_mapping(base, {"optimizer": {"kind": "timm", "name": "lion"}}).optimizer
    assert (lion.lr, lion.weight_decay, lion.model_extra) == (0.5, 0.2, {})
    back = Experiment.from_mapping({"optimizer": {**lion.model_dump(), "betas": [0.1, 0.2]}}, {"optimizer": "adamw"})
    assert (back.optimizer.betas, back.optimizer.weight_decay) == ((0.9, 0.95), 0.2)
