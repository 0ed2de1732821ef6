"""Updates under `mup`, against those that the package mup makes of a model written out in plain torch
(benchmarks/record_mup.py); and that a wrong exponent of any role is noticed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ablate.experiment.tree import Experiment
from ablate.optim import scaling
from ablate.optim.optimizers import build_optimizer

RECORD = json.loads((Path(__file__).parents[1] / "data" / "mup_updates.json").read_text(encoding="utf-8"))
WIDTH, BASE, HEADS, LAYERS, VOCABULARY, LENGTH, BATCH, UPDATES, ELEMENTS = 48, 16, 2, 2, 11, 6, 4, 4, 5
M = WIDTH / BASE
BOUND = 1e-6  # of the rotary table, which is float32


def experiment(kind):
    return Experiment.from_mapping(
        {
            "model": {"kind": "llama", "hidden": WIDTH, "layers": LAYERS, "heads": HEADS, "mlp": 2 * WIDTH},
            "norm": {"kind": "pre", "layer": {"kind": "rmsnorm", "eps": 1e-6}},
            "parametrization": {"kind": "mup", "base": {"hidden": BASE, "layers": LAYERS, "head_dim": BASE // HEADS}},
            "optimizer": {
                "kind": kind,
                "lr": 1e-2,
                "betas": [0.9, 0.95],
                "weight_decay": 0.1 if kind == "adamw" else 0.0,
                "eps": 1e-30,
            },
        }
    )


def weigh(index, shape):
    """The start of a matrix, as the record has it."""
    place = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (0.1 * 2**0.5 * torch.sin(place * (index + 1) * 0.7 + place.square() * 0.013)).view(shape)


def list_parameters(model):
    """Name in the record -> the same matrix or vector of ours, in the record's order."""
    yield "embed.weight", model.embed_tokens.weight
    for i, block in enumerate(model.layers):
        attn, mlp = block.attn, block.mlp
        yield f"layers.{i}.attn_norm.weight", block.attn_residual.norm.weight
        yield f"layers.{i}.mlp_norm.weight", block.mlp_residual.norm.weight
        for name, weight in zip("qkv", attn.qkv_proj.weight.chunk(3), strict=True):
            yield f"layers.{i}.{name}.weight", weight
        yield f"layers.{i}.o.weight", attn.o_proj.weight
        for name, weight in zip(("gate", "up"), mlp.gate_up_proj.weight.chunk(2), strict=True):
            yield f"layers.{i}.{name}.weight", weight
        yield f"layers.{i}.down.weight", mlp.down_proj.weight
    yield "norm.weight", model.norm.weight
    yield "head.weight", model.lm_head.weight


def train(kind, change=lambda multipliers: multipliers):
    """Name -> of each update, the change of the first elements; with the multipliers as `change` makes them."""
    config = experiment(kind)
    stack = config.model.stack()
    torch.set_default_dtype(torch.float64)
    try:
        model = config.model.build(config.norm, config.init, VOCABULARY, (LENGTH,))
        multipliers = change(config.parametrization.list_multipliers(stack))
        scaling.scale_model(model, replace(multipliers, hidden_init=1.0), config.norm, stack)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        matrices = [weight for _, weight in list_parameters(model) if weight.ndim == 2]
        for index, weight in enumerate(matrices):
            weight.copy_(weigh(index, weight.shape))
    optimizer = build_optimizer(config.optimizer, model)
    place = torch.arange(UPDATES * BATCH * (LENGTH + 1))
    changes = {}
    for tokens in ((place * place * 7 + place * 3) % VOCABULARY).view(UPDATES, BATCH, LENGTH + 1):
        before = {name: weight.detach().flatten()[:ELEMENTS].clone() for name, weight in list_parameters(model)}
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        for name, weight in list_parameters(model):
            changed = weight.detach().flatten()[:ELEMENTS] - before[name]
            changes.setdefault(name, []).append(changed.tolist())
    return changes


def find_largest_error(kind, changes):
    """The largest difference from the record, over the largest recorded change."""
    assert changes.keys() == RECORD[kind].keys()
    recorded = torch.tensor([RECORD[kind][name] for name in changes])
    return ((torch.tensor([*changes.values()]) - recorded).abs().max() / recorded.abs().max()).item()


@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_updates_are_those_of_the_package(kind):
    assert find_largest_error(kind, train(kind)) < BOUND


def of_role(where, role, **wrong):
    def change(multipliers):
        factors = multipliers.find_factors(role, where == "inside")
        return replace(multipliers, **{where: {**getattr(multipliers, where), role: replace(factors, **wrong)}})

    return change


WRONG = {
    "output, by the root": lambda own: replace(own, output=M**-0.5),
    "output, none": lambda own: replace(own, output=1.0),
    "queries, none": lambda own: replace(own, queries=1.0),
    "queries, by 1/m": lambda own: replace(own, queries=1 / M),
    "a multiplier of branches": lambda own: replace(own, residual=M**-0.5),
    "hidden rate, by the root": of_role("inside", "matrices", lr=M**-0.5),
    "hidden rate, none": of_role("inside", "matrices", lr=1.0),
    "hidden decay, none": of_role("inside", "matrices", weight_decay=1.0),
    "norms' rate": of_role("inside", "norms", lr=1 / M),
    "final norm's rate": of_role("outside", "norms", lr=1 / M),
    "embedding's rate": of_role("outside", "embedding", lr=M**-0.5),
    "head's rate": of_role("outside", "head", lr=1 / M),
    "embedding's decay": of_role("outside", "embedding", weight_decay=M),
    "head's decay": of_role("outside", "head", weight_decay=M),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_exponent_is_noticed(wrong):
    assert find_largest_error("adamw", train("adamw", WRONG[wrong])) > 1000 * BOUND
