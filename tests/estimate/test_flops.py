"""Parameters and FLOPs, against formulas and torch's own counter."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ablate.estimate.flops import count
from ablate.estimate.inputs import build_skeleton
from ablate.estimate.tracing import checkpoint_layers, count_recomputed
from ablate.estimate.updates import measure_update
from ablate.experiment.tree import Experiment
from ablate.models import Model

SIZES = {  # by hand: V d for each of embedding and head, L (4 d^2 + 3 d i + 2 d) + d
    "llama-71m": (512, 1368, 12),
    "llama-1b": (2048, 5461, 24),
    "llama-7b": (4096, 11008, 32),
}


def counted(settings, classes, shape):
    experiment = Experiment.from_mapping(settings)
    model = build_skeleton(experiment, classes, shape)
    return experiment, model, count(model, shape)


@pytest.mark.parametrize("name", SIZES)
def test_llama_parameters_and_flops_are_those_of_the_formulas(name):
    d, i, layers = SIZES[name]
    vocabulary, seq = 32000, 256
    _, _, counts = counted({"model": name}, vocabulary, (seq,))
    assert counts.embedding == counts.head == vocabulary * d
    assert counts.rest == layers * (4 * d * d + 3 * d * i + 2 * d) + d
    assert counts.total == counts.embedding + counts.head + counts.rest
    assert counts.block == 4 * d * d + 3 * d * i + 2 * d
    flops = 6 * (layers * (4 * d * d + 3 * d * i) + vocabulary * d) + 6 * layers * d * seq
    assert counts.training_flops == flops
    assert counts.forward_flops == flops / 3


def test_vit_parameters_are_timms():
    import timm

    _, _, counts = counted({"model": "vit-small"}, 1000, (3, 224, 224))
    peer = timm.create_model("vit_small_patch16_224")
    assert counts.total == sum(p.numel() for p in peer.parameters())
    assert counts.embedding == 16 * 16 * 3 * 384 + 384 + 384 + 197 * 384
    assert counts.head == 384 * 1000 + 1000
    assert counts.forward_flops / 2 == pytest.approx(4.61e9, rel=0.01)  # multiply-adds of DeiT-S, Touvron et al. 2021


def test_a_tied_head_has_no_parameters_and_costs_the_same():
    _, _, free = counted({"model.tie_embeddings": False}, 256, (32,))
    _, _, tied = counted({"model.tie_embeddings": True}, 256, (32,))
    assert tied.head == 0
    assert free.total - tied.total == free.head == 256 * 128
    assert tied.forward_flops == free.forward_flops


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"model.kv_heads": 2, "norm": "hybrid"}, (32,)),
        ({"model": "vit", "model.patch_size": 4, "norm": "subln"}, (3, 16, 16)),
        ({"model.kv_heads": 2, "norm": "hybrid", "norm.layer": "gatednorm"}, (32,)),
        ({"model": "vit", "model.patch_size": 4, "norm.layer": "gatednorm", "norm.qk": "gatednorm"}, (3, 16, 16)),
        *(
            pytest.param(*case, marks=pytest.mark.addons)
            for case in (
                ({"norm": "hybrid", "warm_start": {"from": "somewhere", "copy": "all"}, "lora": {"rank": 4}}, (32,)),
                ({"model": "gru", "norm.layer": "layernorm"}, (32,)),
                ({"model": "convpool", "norm.layer": "prmsnorm"}, (3, 16, 20)),
            )
        ),
    ],
)
def test_flops_are_those_that_torch_counts(settings, shape):
    experiment, model, counts = counted(settings, 50, shape)
    language = len(shape) == 1
    inputs = torch.zeros((1, *shape), dtype=torch.int64 if language else None, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(inputs)
    total = counter.get_total_flops()
    if language:  # torch counts all pairs of tokens, of which a causal model needs half
        attention = 2 * experiment.model.layers * experiment.model.hidden * shape[0] if experiment.model.heads else 0
        total = total / shape[0] - attention
    assert counts.forward_flops == total


@pytest.mark.parametrize(
    ("family", "shape", "kind"), [("llama", (8,), "pre"), ("llama", (8,), "hc"), ("vit", (1, 8, 8), "post")]
)
def test_what_checkpointing_computes_again_is_what_torch_counts(family, shape, kind):
    """Six layers, of which four are traced."""
    model = {"kind": family, "hidden": 8, "layers": 6, "heads": 2}
    experiment, skeleton, _ = counted({"model": model, "norm": kind}, 11, shape)
    real = experiment.model.build(experiment.norm, experiment.init, 11, shape)
    inputs, targets = torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64)
    if family == "llama":
        inputs, targets = (torch.zeros(1, *shape, dtype=torch.int64) for _ in range(2))
    totals = []
    for again in (contextlib.nullcontext(), checkpoint_layers(list(real.blocks()))):
        with FlopCounterMode(display=False) as counter, again:
            experiment.task.compute_loss(real, inputs, targets).backward()
        totals.append(counter.get_total_flops())
    assert count_recomputed(skeleton, experiment.task, shape, 11) == totals[1] - totals[0] > 0


@pytest.mark.addons
def test_a_frozen_head_hands_its_gradient_on_and_has_none_itself():
    model = {"kind": "llama", "hidden": 8, "layers": 2, "heads": 2, "mlp": 12}
    _, _, free = counted({"model": model}, 50, (16,))
    _, _, counts = counted({"model": model, "warm_start": {"freeze": ["embedding", "head"]}}, 50, (16,))
    assert (counts.total, counts.frozen) == (free.total, 2 * 50 * 8)
    assert counts.training_flops == free.training_flops - 2 * 50 * 8


@pytest.mark.addons
def test_adapters_are_counted_and_trained_beside_frozen_matrices():
    """By hand: rank 3 on query, key and value (8 -> 24) of two layers; the rest hands its gradient on."""
    pytest.importorskip("peft")
    model = {"kind": "llama", "hidden": 8, "layers": 2, "heads": 2, "mlp": 12}
    _, _, free = counted({"model": model}, 50, (16,))
    start = {"from": "somewhere", "copy": "all"}
    lora = {"rank": 3, "targets": "qkv_proj"}
    _, _, counts = counted({"model": model, "warm_start": start, "lora": lora}, 50, (16,))
    learned, matrices = 2 * 3 * (8 + 24), 2 * (4 * 8 * 8 + 3 * 8 * 12) + 50 * 8
    assert (counts.total, counts.frozen) == (free.total + learned, free.total)
    assert counts.forward_flops == free.forward_flops + 2 * learned
    assert counts.training_flops == free.training_flops - 2 * matrices + 6 * learned


def test_a_model_without_layers_is_counted():
    for kind, classes, shape in (("llama", 50, (16,)), ("vit", 10, (1, 8, 8))):
        _, _, counts = counted({"model": {"kind": kind, "layers": 0}}, classes, shape)
        assert counts.block == 0
        assert counts.training_flops > 0


@pytest.mark.parametrize("family", ["llama", "vit"])
def test_a_deep_model_is_looked_at_as_often_as_a_shallow_one(family, monkeypatch):
    """A plan of 600 layers took more than a minute."""
    looks = []
    plain = nn.Module.state_dict
    monkeypatch.setattr(Model, "state_dict", lambda self, **more: looks.append(self) or plain(self, **more))
    numbers = []
    for layers in (2, 40):
        looks.clear()
        shape = (8,) if family == "llama" else (1, 8, 8)
        counted({"model": {"kind": family, "layers": layers}}, 10, shape)
        numbers.append(len(looks))
    assert numbers[0] == numbers[1] > 0


def test_what_an_optimizer_keeps_is_measured_on_few_of_the_equal_layers(monkeypatch):
    experiment, model, _ = counted({"model.layers": 30, "optimizer.kind": "adamw"}, 10, (8,))
    built = []
    build = type(experiment.optimizer).build
    monkeypatch.setattr(type(experiment.optimizer), "build", lambda self, part: built.append(part) or build(self, part))
    assert measure_update(model, experiment.optimizer, half=False).states == 2
    assert len(list(built[0].blocks())) < 6
    assert len(list(model.blocks())) == 30
