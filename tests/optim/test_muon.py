"""Muon against the iteration written by hand, on each of the matrices that are fused, and AdamW on the rest."""

import json
import math

import pytest
import torch
from forked import run_ranks

from ablate.config.errors import ConfigError
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
    assert {n: list_fused(model)[model.get_parameter(n)].rows for n in rows} == rows
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


def test_a_model_without_matrices_is_refused():
    """AdamW alone would train it, under the name of Muon."""
    experiment = Experiment.from_mapping({"model": {"layers": 0, "hidden": 16, "heads": 2}, "optimizer": "muon"})
    with pytest.raises(ConfigError, match=r"optimizer\.name: updates matrices, and no trained parameter but embedding"):
        build_optimizer(experiment.optimizer, experiment.build_model(20, (8,)))


SHARED = """
import copy
import json, sys
from pathlib import Path

import torch
from forked import run_ranks
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from ablate.distributed import ranks
from ablate.distributed.matrices import Fused, Piece, regroup, ungroup
from ablate.experiment.tree import Experiment
from ablate.optim.muon import list_fused
from ablate.optim.optimizers import build_optimizer
from ablate.parallel.tensor import change_fused_rows, share_matrices

cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
FULL = StateDictOptions(full_state_dict=True)


def build(tree, layout):
    # the model with the shards of a layout: copies, or a mesh of replicas, shards and parts of heads
    torch.manual_seed(0)
    experiment = Experiment.from_mapping(tree)
    model = experiment.model.build(experiment.norm, experiment.init, 11, (12,))
    if layout != "copies":
        fused, (replicas, shards, parts) = list_fused(model), layout
        named = [(n, fused[p]) for n, p in model.named_parameters() if p in fused]
        model.fused_matrices = {n: Fused(own.rows, parts) for n, own in named}
        mesh = init_device_mesh("cpu", tuple(layout), mesh_dim_names=("replicas", "shards", "parts"))
        data = mesh["replicas", "shards"] if replicas > 1 else mesh["shards"]
        for layer in model.layers:
            if parts > 1:
                share_matrices(layer, experiment.model, mesh["parts"])
            fully_shard(layer, mesh=data)
        fully_shard(model, mesh=data)
    parts = 1 if layout == "copies" else layout[2]
    change = [change_fused_rows(experiment.model, parts, how) for how in (regroup, ungroup)]
    return model, build_optimizer(experiment.optimizer, model), change


def give_gradients(model, update, change):
    generator = torch.Generator().manual_seed(update)
    for name, parameter in model.named_parameters():
        gradient = change(name, torch.randn(parameter.shape, generator=generator))
        if update == 0 and "layers.1.mlp" in name:  # has none yet, so that its state begins later
            parameter.grad = None
            continue
        if isinstance(parameter, DTensor):
            own = Piece.of(parameter).cut(gradient).clone()
            gradient = DTensor.from_local(
                own, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
            )
        parameter.grad = gradient


def everything():
    found = {}
    for name, (tree, layout) in cases.items():
        model, optimizer, (regrouped, ungrouped) = build(tree, layout)
        for update in range(3):
            if update == 2 and layout == "copies":  # goes on from what a checkpoint has
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = build_optimizer(Experiment.from_mapping(tree).optimizer, model)
                optimizer.load_state_dict(state)
            elif update == 2:
                state = ranks.gather_objects(get_optimizer_state_dict(model, optimizer, options=FULL))[0]
                optimizer.zero_grad()
                optimizer = build_optimizer(Experiment.from_mapping(tree).optimizer, model)
                set_optimizer_state_dict(model, optimizer, state, options=FULL)
            give_gradients(model, update, regrouped)
            optimizer.step()
        weights = get_model_state_dict(model, options=FULL)
        states = get_optimizer_state_dict(model, optimizer, options=FULL).get("state", {})
        whole = {(n, key): value for n, own in states.items() for key, value in own.items()}
        found[name] = (
            {n: ungrouped(n, value) for n, value in weights.items()},
            {(n, key): ungrouped(n, v) if getattr(v, "ndim", 0) else v for (n, key), v in whole.items()},
        )
    if ranks.rank() == 0:
        torch.save(found, out)


torch.distributed.init_process_group("gloo")
ranks.group = ranks.Group(torch.distributed.get_rank(), torch.distributed.get_world_size(), None)
everything()
"""


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.chaos)])
def test_ranks_that_share_the_work_do_what_one_process_does(count, tmp_path):
    """Muon bit for bit: with copies, shards, replicas of shards, and shards of parts of the heads; also after a state
    was saved whole and loaded again."""
    sizes = {"kind": "llama", "hidden": 24, "layers": 2, "heads": 4, "kv_heads": 2}
    fields = {"lr": 0.02, "aux_lr": 0.003, "weight_decay": 0.1}
    layouts = ["copies", [1, count, 1], [1, count // 2, 2], *([[2, 2, 1]] if count == 4 else [])]
    cases = {}
    for layout in layouts:
        # shards need not be of one size, nor the matrices a multiple of the ranks
        model = {**sizes, **({"mlp": 26} if layout[-1] == 2 else {"mlp": 27, "attention": {"gate": "elementwise"}})}
        others = {"copies": [("timm", "muon")], str([1, count, 1]): [("timm", "adamuon")]}  # and torch's on each
        for kind, name in [MUONS[0], *others.get(str(layout), [])]:
            tree = {"model": model, "optimizer": {"kind": kind, "name": name, **fields}}
            cases[f"{kind} {name} {layout}"] = (tree, layout)
    script, settings, out = tmp_path / "script.py", tmp_path / "settings.json", tmp_path / "out.pt"
    script.write_text(SHARED)
    settings.write_text(json.dumps(cases))
    ended = run_ranks(script, settings, out, cwd=tmp_path, seconds=280, count=count)
    assert [status for status, *_ in ended] == [0] * count, ended
    found = torch.load(out, weights_only=True)
    for name, (tree, _) in cases.items():
        experiment = Experiment.from_mapping(tree)
        torch.manual_seed(0)
        model = experiment.model.build(experiment.norm, experiment.init, 11, (12,))
        optimizer = build_optimizer(experiment.optimizer, model)
        for update in range(3):
            draw(model, update)
            for n, p in model.named_parameters():
                if update == 0 and "layers.1.mlp" in n:
                    p.grad = None
            optimizer.step()
        weights, states = found[name]
        for n, p in model.named_parameters():
            off = 0 if assign_roles(model)[n] == "matrices" else 1e-6  # AdamW rounds shards in other places
            torch.testing.assert_close(weights[n], p.data, rtol=off, atol=0, msg=f"{name}: {n}")
            for key, value in optimizer.state[p].items():
                told = torch.as_tensor(states[n, key])
                torch.testing.assert_close(told, torch.as_tensor(value), rtol=off, atol=0, msg=f"{name}: {n}, {key}")
