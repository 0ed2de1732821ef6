"""Roles of parameters, what each role sets, and the check that nothing is left out."""

from typing import Literal

import pytest
import torch
from norms.cases import WIRED
from torch import nn

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.optim.groups import ROLES, assign_roles
from ablate.optim.optimizers import OptimizerConfig, build_optimizer, optimizers


def test_roles_of_a_language_model(tiny):
    _, model, _ = tiny("llama", {"norm": "sandwich"})
    roles = assign_roles(model)
    assert {role: sum(value == role for value in roles.values()) for role in ROLES} == {
        "embedding": 1, "head": 1, "matrices": 3 * 4, "gates": 0, "biases": 0, "norms": 3 * 4 + 1,
        "readouts": 0,
    }  # fmt: skip
    assert roles["embed_tokens.weight"] == "embedding"
    assert roles["lm_head.weight"] == "head"


def test_roles_of_a_vision_transformer(tiny):
    _, model, _ = tiny("vit", {"norm.layer": "layernorm"})
    roles = assign_roles(model)
    embedding = {name for name, role in roles.items() if role == "embedding"}
    assert embedding == {"vit.patch_embed.proj.weight", "vit.patch_embed.proj.bias", "vit.pos_embed", "vit.cls_token"}
    assert {name for name, role in roles.items() if role == "head"} == {"vit.head.weight", "vit.head.bias"}
    assert roles["vit.blocks.0.attn.qkv.bias"] == roles["vit.blocks.2.mlp.fc1.bias"] == "biases"
    assert sum(role == "matrices" for role in roles.values()) == 3 * 4
    assert {name.rpartition(".")[2] for name, role in roles.items() if role == "norms"} == {"weight", "bias"}


def test_the_gates_of_norms_are_no_matrices_for_muon(tiny):
    _, model, _ = tiny("llama", {"norm.layer": "gatednorm"})
    roles = assign_roles(model)
    assert {roles[name] for name in roles if name.endswith(".down")} == {"readouts"}
    assert {roles[name] for name in roles if name.endswith((".up", "norm.weight"))} == {"norms"}
    assert sum(role == "matrices" for role in roles.values()) == 3 * 4
    groups = optimizers["adamw"](weight_decay=0.3).build_groups(model)
    decaying = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decaying == {id(p) for p in model.parameters() if p.ndim == 2}


def test_a_tied_head_is_embedding(tiny):
    _, model, _ = tiny("llama", {"model.tie_embeddings": True})
    assert "head" not in assign_roles(model).values()


@pytest.mark.parametrize(("family", "kind"), WIRED)
def test_norms_and_factors_of_every_placement_are_norms(tiny, family, kind):
    if kind == "by_depth":
        settings = {"norm": {"kind": kind, "ranges": {"all": {"placement": "pre"}}}}
    else:
        settings = {"norm": kind}
    _, model, _ = tiny(family, settings)
    for name, role in assign_roles(model).items():
        if "residual" in name:
            assert role == ("readouts" if name.endswith(("_map", "projection")) else "norms"), name


def test_settings_by_role(tiny):
    fields = {"lr": 0.1, "weight_decay": 0.2}
    own = {"embedding": {"lr_factor": 3.0}, "norms": {"weight_decay": 0.4}, "biases": {"lr_factor": 2.0}}
    _, model, _ = tiny("vit", {"norm.layer": "layernorm"})
    optimizer = build_optimizer(optimizers["adamw"](**fields, groups=own), model)
    names = {p: name for name, p in model.named_parameters()}
    settings = {
        names[p]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups for p in group["params"]
    }
    roles = assign_roles(model)
    assert settings.keys() == roles.keys()
    expected = {
        "embedding": (pytest.approx(0.3), 0.2), "head": (0.1, 0.2), "matrices": (0.1, 0.2), "biases": (0.2, 0.0),
        "norms": (0.1, 0.4),
    }  # fmt: skip
    flat = {"vit.pos_embed", "vit.cls_token", "vit.patch_embed.proj.bias", "vit.head.bias"}
    for name, role in roles.items():
        rate, decay = expected[role]
        assert settings[name] == (rate, 0.0 if name in flat else decay), name
    assert optimizer.param_groups[0]["lr"] == 0.1  # which is logged


def test_without_settings_the_groups_are_those_of_before(tiny):
    """Two, what decays first: checkpoints have them in this order."""
    _, model, _ = tiny("vit")
    groups = optimizers["adamw"](weight_decay=0.3).build_groups(model)
    assert [group.keys() for group in groups] == [{"params", "weight_decay"}] * 2
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]


def test_a_factor_is_that_of_the_rate_in_every_update(tiny):
    _, model, _ = tiny("llama", {})
    experiment = Experiment.from_mapping({"optimizer.lr": 0.5, "optimizer.groups.norms.lr_factor": 0.1})
    optimizer = build_optimizer(experiment.optimizer, model)
    schedule = experiment.schedule.build(optimizer, 20)
    for update in range(20):
        peak = 0.5 * experiment.schedule.factor(update, 20)
        assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([peak, 0.1 * peak])
        optimizer.step()
        schedule.step()


def test_a_model_of_transformers_has_a_head_beside_its_base():
    class Wrapped(nn.Module):
        base_model_prefix = "model"

        def __init__(self):
            super().__init__()
            self.model = nn.Sequential(nn.Embedding(3, 4), nn.LayerNorm(4), nn.Linear(4, 4))
            self.score = nn.Linear(4, 1)

    assert assign_roles(Wrapped()) == {
        "model.0.weight": "embedding", "model.1.weight": "norms", "model.1.bias": "norms", "model.2.weight": "matrices",
        "model.2.bias": "biases", "score.weight": "head", "score.bias": "head",
    }  # fmt: skip


def test_an_optimizer_that_leaves_parameters_out_is_refused_with_their_names(tiny, registries):
    class Matrices(OptimizerConfig):
        kind: Literal["matrices-alone"] = "matrices-alone"

        def build(self, model):
            return torch.optim.SGD([p for p in model.parameters() if p.ndim >= 2], lr=self.lr)

    registries["optimizer"].register(Matrices)
    experiment, model, _ = tiny("llama", {"optimizer": "matrices-alone", "model.layers": 2})
    with pytest.raises(ConfigError) as caught:
        build_optimizer(experiment.optimizer, model)
    names = [name for name, p in model.named_parameters() if p.ndim < 2]
    assert len(names) == 5
    assert f"leaves trainable parameters out: {', '.join(names)}. Each must be" in str(caught.value)
