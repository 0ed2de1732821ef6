"""Muon against the iteration written by hand, on each of the matrices that are fused, and AdamW on the rest."""

import math

import pytest
import torch

from ablate.experiment.tree import Experiment
from ablate.optim.groups import assign_roles
from ablate.optim.muon import MuonWithAdamW, list_fused
from ablate.optim.optimizers import AdamW, build_optimizer

MUONS = [("torch", "Muon"), ("timm", "muon")]
JORDAN = [3.4445, -4.7750, 2.0315]


def orthogonalize(matrix, steps=5):
    """Newton-Schulz by hand: X <- a X + b (X X^T) X + c (X X^T)^2 X, from X / |X|, in float64."""
    a, b, c = JORDAN
    x = matrix.double()
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / x.norm()
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def build(kind, name, family="llama", **more):
    sizes = {"kind": family, "hidden": 16, "layers": 2, "heads": 4, **more}
    fields = {"lr": 0.02, "aux_lr": 0.003, "weight_decay": 0.1, "momentum": 0.9, "nesterov": False}
    own = {"ns_coefficients": JORDAN, "adjust_lr_fn": "original"}
    experiment = Experiment.from_mapping({"model": sizes, "optimizer": {"kind": kind, "name": name, **fields, **own}})
    torch.manual_seed(0)
    shape = (12,) if family == "llama" else (1, 8, 8)
    return experiment, experiment.model.build(experiment.norm, experiment.init, 11, shape)


def draw(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def cut(model, family):
    """Name -> rows of the matrices in it, from the sizes of the model."""
    if family == "vit":
        return {name: [16] * 3 for name, _ in model.named_parameters() if name.endswith("qkv.weight")}
    config = model.config
    heads, mlp = [16, 8, 8], [config.mlp] * 2
    named = [name for name, _ in model.named_parameters()]
    return {n: heads if "qkv" in n else mlp for n in named if n.endswith(("qkv_proj.weight", "gate_up_proj.weight"))}


@pytest.mark.parametrize("family", ["llama", "vit"])
@pytest.mark.parametrize(("kind", "name"), MUONS)
def test_each_matrix_is_orthogonalised_by_itself_and_the_rest_is_adamw(kind, name, family):
    more = {"kv_heads": 2} if family == "llama" else {}
    experiment, model = build(kind, name, family, **more)
    rows = cut(model, family)
    assert {n: list_fused(model)[model.get_parameter(n)] for n in rows} == rows
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = build_optimizer(experiment.optimizer, model)
    gradients = {n: [] for n in start}
    for update in range(2):
        draw(model, update)
        for n, p in model.named_parameters():
            gradients[n].append(p.grad.clone())
        optimizer.step()
    # the rest, by torch's AdamW alone
    twin = experiment.model.build(experiment.norm, experiment.init, 11, (12,) if family == "llama" else (1, 8, 8))
    twin.load_state_dict(start, strict=False)
    adamw = AdamW(lr=0.003, weight_decay=0.1).build(twin)
    for update in range(2):
        draw(twin, update)
        adamw.step()
    roles = assign_roles(model)
    for n, p in model.named_parameters():
        if roles[n] != "matrices":
            assert torch.equal(p, twin.get_parameter(n)), n
            continue
        parts = []
        sizes = rows.get(n, [len(p)])
        pieces = zip(start[n].split(sizes), *(g.split(sizes) for g in gradients[n]), strict=True)
        for matrix, *steps in pieces:
            matrix, momentum = matrix.double(), torch.zeros_like(matrix.double())
            for gradient in steps:
                # torch's buffer is a sum, timm's a mean; the direction is the same
                momentum = 0.9 * momentum + gradient.double()
                scale = math.sqrt(max(1, matrix.shape[0] / matrix.shape[1]))
                matrix = matrix * (1 - 0.02 * 0.1) - 0.02 * scale * orthogonalize(momentum)
            parts.append(matrix)
        # both libraries iterate in bfloat16
        moved = (torch.cat(parts) - start[n].double()).norm()
        assert (p.double() - torch.cat(parts)).norm() < 0.03 * moved, n


@pytest.mark.parametrize(("kind", "name"), MUONS)
def test_a_fused_matrix_as_one_would_be_another_step(kind, name):
    """What the split is for: the update of the whole is not that of its parts."""
    whole = torch.randn(48, 16, generator=torch.Generator().manual_seed(1))
    parts = torch.cat([orthogonalize(part) for part in whole.split(16)])
    assert (orthogonalize(whole) * math.sqrt(3) - parts).norm() > 0.3 * parts.norm()
    _, model = build(kind, name)
    assert len(list_fused(model)) == 2 * 2  # of two layers


@pytest.mark.parametrize(("kind", "name"), [*MUONS, ("timm", "adamuon")])
def test_the_state_is_that_of_whole_parameters(kind, name):
    """A checkpoint knows nothing of the split."""
    experiment, model = build(kind, name) if name != "adamuon" else build_adamuon()
    optimizer = build_optimizer(experiment.optimizer, model)
    assert isinstance(optimizer, MuonWithAdamW)
    for update in range(3):
        draw(model, update)
        optimizer.step()
    weight = model.layers[0].attn.qkv_proj.weight
    state = optimizer.state[weight]
    assert state["momentum_buffer"].shape == weight.shape
    assert int(state.get("step", 3)) == 3
    assert {*optimizer.state} == {*model.parameters()}
    groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert len(groups) == len(list(model.parameters()))


def build_adamuon():
    experiment = Experiment.from_mapping(
        {
            "model": {"kind": "llama", "hidden": 16, "layers": 2, "heads": 4},
            "optimizer": {"kind": "timm", "name": "adamuon"},
        }
    )
    return experiment, experiment.model.build(experiment.norm, experiment.init, 11, (12,))


def test_blocks_that_are_computed_again_are_split_too():
    from ablate.parallel.strategies import checkpoint_activations

    _, model = build(*MUONS[0])
    rows = list(list_fused(model).values())
    checkpoint_activations(model)
    assert list(list_fused(model).values()) == rows
