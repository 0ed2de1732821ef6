"""How the weights start: `init`, and the placements that bring an initialisation of their own."""

import math

import pytest
import torch
from norms.cases import INITS

from ablate.experiment.tree import Experiment
from ablate.models import list_families
from ablate.norms import placements

HIDDEN, MLP = 128, 352
SIZES = {
    "llama": {"kind": "llama", "hidden": HIDDEN, "mlp": MLP, "heads": 4, "kv_heads": 2},
    "vit": {"kind": "vit", "hidden": HIDDEN, "mlp_ratio": MLP / HIDDEN, "heads": 4},
}


def weights(family, depth, settings, seed=0):
    """{role: [its matrix of each layer]}, taken out of the modules by hand."""
    model = build(family, depth, settings, seed)
    if family == "vit":
        found = {role: [b.attn.qkv.weight.chunk(3)[i] for b in model.vit.blocks] for i, role in enumerate("qkv")}
        found["o"] = [b.attn.proj.weight for b in model.vit.blocks]
        found["up"] = [b.mlp.fc1.weight for b in model.vit.blocks]
        found["down"] = [b.mlp.fc2.weight for b in model.vit.blocks]
        return found
    rows = {"q": slice(0, HIDDEN), "k": slice(HIDDEN, HIDDEN * 3 // 2), "v": slice(HIDDEN * 3 // 2, HIDDEN * 2)}
    found = {role: [x.attn.qkv_proj.weight[where] for x in model.layers] for role, where in rows.items()}
    found["gate"] = [x.mlp.gate_up_proj.weight[:MLP] for x in model.layers]
    found["up"] = [x.mlp.gate_up_proj.weight[MLP:] for x in model.layers]
    found["o"] = [x.attn.o_proj.weight for x in model.layers]
    found["down"] = [x.mlp.down_proj.weight for x in model.layers]
    return found


def build(family, depth, settings, seed=0):
    if family not in SIZES:
        pytest.fail(f"write the sizes and the projections of {family} here")
    experiment = Experiment.from_mapping({"model": {**SIZES[family], "layers": depth}}, settings)
    torch.manual_seed(seed)
    shape = (16,) if experiment.model.task == "language_modeling" else (1, 8, 8)
    return experiment.model.build(experiment.norm, experiment.init, 400, shape)


def std(matrix):
    assert matrix.mean().abs() < 5 * matrix.std() / matrix.numel() ** 0.5
    return matrix.std().item()


@pytest.mark.parametrize("kind", ["pre", "post", "lns", "mix"])
@pytest.mark.parametrize("family", list_families())
def test_normal_has_one_std_everywhere(family, kind):
    for matrices in weights(family, 2, {"norm": kind, "init": {"kind": "normal", "std": 0.05}}).values():
        assert [std(m) for m in matrices] == pytest.approx([0.05] * 2, rel=0.03)


def test_the_default_is_002():
    model = build("llama", 2, {})
    assert std(model.layers[0].attn.o_proj.weight) == pytest.approx(0.02, rel=0.03)
    assert std(model.embed_tokens.weight) == pytest.approx(0.02, rel=0.03)
    assert std(model.lm_head.weight) == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("family", list_families())
def test_scaled_shrinks_what_writes_to_the_stream(family, depth):
    for role, matrices in weights(family, depth, {"init": "scaled"}).items():
        expected = 0.02 / math.sqrt(2 * depth) if role in ("o", "down") else 0.02
        assert [std(m) for m in matrices] == pytest.approx([expected] * depth, rel=0.03), role


@pytest.mark.parametrize(
    ("kind", "gain"), [("deepnorm", lambda L: (8 * L) ** -0.25), ("subln", lambda L: math.log(2 * L) ** 0.5)]
)
@pytest.mark.parametrize(("family", "init"), INITS)
@pytest.mark.parametrize("depth", [2, 8])
def test_a_placement_of_its_own_gains_is_xavier_with_them(family, depth, init, kind, gain):
    """For v, o and the MLP; 1 for q and k. DeepNorm's is below 1: the published code has the sign inverted."""
    for role, matrices in weights(family, depth, {"norm": kind, "init": init}).items():
        out, into = matrices[0].shape
        expected = (1.0 if role in ("q", "k") else gain(depth)) * math.sqrt(2 / (out + into))
        assert [std(m) for m in matrices] == pytest.approx([expected] * depth, rel=0.03), role


def test_every_placement_with_gains_is_tested_above():
    assert {kind for kind in placements if placements[kind]().gains(2)} == {"deepnorm", "subln"}


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("family", list_families())
def test_small_scaled_follows_width_and_depth(family, depth):
    small = math.sqrt(2 / (5 * HIDDEN))
    for role, matrices in weights(family, depth, {"init": "small_scaled"}).items():
        expected = small / math.sqrt(2 * depth) if role in ("o", "down") else small
        assert [std(m) for m in matrices] == pytest.approx([expected] * depth, rel=0.03), role
    given = weights(family, depth, {"init": {"kind": "small_scaled", "std": 0.1}})
    assert std(given["q"][0]) == pytest.approx(0.1, rel=0.03)


def test_scaled_embedding_scales_the_embedding_alone():
    model, plain = (build("llama", 4, {"init": init}) for init in ("scaled_embedding", "scaled"))
    assert std(model.embed_tokens.weight) == pytest.approx(math.sqrt(2 / 5), rel=0.03)
    for a, b in zip(list(model.projections())[1:], list(plain.projections())[1:], strict=True):
        assert torch.equal(a.weight, b.weight)


@pytest.mark.parametrize("family", list_families())
def test_a_mix_initialises_each_layer_by_its_own_placement(family):
    found = weights(family, 4, {"norm": "mix", "norm.alpha": 0.5, "norm.first": "deepnorm"})["down"]
    xavier = (8 * 4) ** -0.25 * math.sqrt(2 / (HIDDEN + MLP))
    assert [std(m) for m in found] == pytest.approx([xavier, xavier, 0.02, 0.02], rel=0.03)


@pytest.mark.parametrize(("family", "init"), INITS)
def test_the_seed_fixes_the_weights(family, init):
    one, same, other = (build(family, 2, {"init": init}, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    matrices = [name for name in one if one[name].ndim >= 2 and "cls_token" not in name]
    assert len(matrices) > 8
    assert not any(torch.equal(one[name], other[name]) for name in matrices)


@pytest.mark.parametrize("kind", placements)
@pytest.mark.parametrize("family", list_families())
def test_placements_are_paired_by_seed(family, kind):
    """With one seed, all placements start from the same draw: what they do not initialise themselves is the same."""
    ours, pre = (build(family, 2, {"norm": norm}).projections() for norm in (kind, "pre"))
    gains = placements[kind]().at(0, 2).gains(2)
    for a, b in zip(ours, pre, strict=True):
        assert (a.role, a.layer) == (b.role, b.layer)
        ratio = a.weight / b.weight
        torch.testing.assert_close(ratio, torch.full_like(ratio, ratio.flatten()[0].item()), atol=1e-3, rtol=1e-3)
        if a.role not in gains:
            assert torch.equal(a.weight, b.weight), a


def test_tied_embeddings_are_drawn_once():
    experiment = {"model.tie_embeddings": True, "init.std": 0.05}
    model = build("llama", 1, experiment)
    assert model.lm_head.weight is model.embed_tokens.weight
    assert std(model.lm_head.weight) == pytest.approx(0.05, rel=0.03)
    assert [p.role for p in model.projections()] == ["embedding", "q", "k", "v", "o", "gate", "up", "down"]
