"""How the weights start: `init`, and the placements that bring an initialisation of their own."""

import math

import pytest
import torch
from norms.cases import INITS, RESIDUAL, WIRED

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.norms import initializations, placements

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
@pytest.mark.parametrize("family", RESIDUAL)
def test_normal_has_one_std_everywhere(family, kind):
    for matrices in weights(family, 2, {"norm": kind, "init": {"kind": "normal", "std": 0.05}}).values():
        assert [std(m) for m in matrices] == pytest.approx([0.05] * 2, rel=0.03)


def test_the_default_is_002():
    model = build("llama", 2, {})
    assert std(model.layers[0].attn.o_proj.weight) == pytest.approx(0.02, rel=0.03)
    assert std(model.embed_tokens.weight) == pytest.approx(0.02, rel=0.03)
    assert std(model.lm_head.weight) == pytest.approx(0.02, rel=0.03)


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("family", RESIDUAL)
def test_scaled_shrinks_what_writes_to_the_stream(family, depth):
    for role, matrices in weights(family, depth, {"init": "scaled"}).items():
        expected = 0.02 / math.sqrt(2 * depth) if role in ("o", "down") else 0.02
        assert [std(m) for m in matrices] == pytest.approx([expected] * depth, rel=0.03), role


@pytest.mark.parametrize(
    ("kind", "gain"),
    [
        ("deepnorm", lambda L: (8 * L) ** -0.25),
        ({"kind": "deepnorm", "scale_residual": False}, lambda L: 1 / (8 * L) ** 0.25),
        ({"kind": "deepnorm", "published_code": True}, lambda L: (8 * L) ** 0.25),
        ({"kind": "minimax", "scale_init": True}, lambda L: (8 * L) ** -0.25),
        ("subln", lambda L: math.log(2 * L) ** 0.5),
    ],
    ids=["deepnorm", "deepnorm-init-only", "deepnorm-published", "minimax-init", "subln"],
)
@pytest.mark.parametrize(("family", "init"), INITS)
@pytest.mark.parametrize("depth", [2, 8])
def test_a_placement_of_its_own_gains_is_xavier_with_them(family, depth, init, kind, gain):
    """For v, o and the MLP; 1 for q and k. DeepNorm's is below 1: the published code has the sign inverted, which is
    repeated only where it is asked for by name."""
    for role, matrices in weights(family, depth, {"norm": kind, "init": init}).items():
        out, into = matrices[0].shape
        expected = (1.0 if role in ("q", "k") else gain(depth)) * math.sqrt(2 / (out + into))
        assert [std(m) for m in matrices] == pytest.approx([expected] * depth, rel=0.03), role


def test_every_placement_with_gains_is_tested_above():
    assert {kind for kind in placements if placements[kind]().gains(2)} == {"deepnorm", "subln"}


@pytest.mark.parametrize("depth", [2, 8])
@pytest.mark.parametrize("family", RESIDUAL)
def test_small_scaled_rescales_what_writes_to_the_stream_alone(family, depth):
    """By width and depth, whatever the standard deviation of the others is: W_0 and W_2 of the paper."""
    small = math.sqrt(2 / (5 * HIDDEN)) / math.sqrt(2 * depth)
    for init, base in (("small_scaled", 0.02), ({"kind": "small_scaled", "std": 0.1}, 0.1)):
        for role, matrices in weights(family, depth, {"init": init}).items():
            expected = small if role in ("o", "down") else base
            assert [std(m) for m in matrices] == pytest.approx([expected] * depth, rel=0.03), role


@pytest.mark.parametrize("family", RESIDUAL)
def test_depth_scaled_shrinks_every_matrix_of_a_layer_by_its_number(family):
    for role, matrices in weights(family, 4, {"init": "depth_scaled"}).items():
        expected = [0.02 / math.sqrt(2 * nth) for nth in (1, 2, 3, 4)]
        assert [std(m) for m in matrices] == pytest.approx(expected, rel=0.03), role


def test_skipinit_starts_at_one_over_the_root_of_the_depth():
    for depth in (2, 8):
        model = build("llama", depth, {"norm": "skipinit"})
        scales = [r.scale.item() for layer in model.layers for r in (layer.attn_residual, layer.mlp_residual)]
        assert scales == pytest.approx([1 / math.sqrt(depth)] * 2 * depth)


@pytest.mark.parametrize("init", [init for init in initializations if not initializations[init].of_library])
def test_every_initialisation_has_a_standard_deviation_of_the_embedding(init):
    plain = build("llama", 2, {"init": init})
    model = build("llama", 2, {"init": {"kind": init, "embedding_std": math.sqrt(2 / 5)}})
    assert std(plain.embed_tokens.weight) == pytest.approx(1 if init == "fan_in" else 0.02, rel=0.03)
    assert std(model.embed_tokens.weight) == pytest.approx(math.sqrt(2 / 5), rel=0.03)
    for a, b in zip(list(model.projections())[1:], list(plain.projections())[1:], strict=True):
        assert torch.equal(a.weight, b.weight)


def test_an_embedding_that_is_the_head_or_that_is_none_has_no_deviation_of_its_own():
    for settings in ({"model.tie_embeddings": True}, {"model": "vit"}):
        with pytest.raises(ConfigError, match=r"init\.embedding_std: the model has no token embedding of its own"):
            Experiment.from_mapping({"init.embedding_std": 1.0}, settings)


def test_scaled_embedding_multiplies_in_the_forward_pass():
    """The first layer's input is sqrt(d) times the embedding, whose weights are those of small_scaled."""
    model, plain = (build("llama", 2, {"init": init}) for init in ("scaled_embedding", "small_scaled"))
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(model.projections(), plain.projections(), strict=True))
    seen = []
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    tokens = torch.arange(16).view(1, 16)
    logits = model(tokens)
    torch.testing.assert_close(seen[0], math.sqrt(HIDDEN) * model.embed_tokens.weight[:16].unsqueeze(0))
    plain.embed_tokens.weight.data *= math.sqrt(HIDDEN)
    torch.testing.assert_close(logits, plain(tokens))


def test_a_factor_beside_that_of_a_norm_layer_is_refused():
    with pytest.raises(ConfigError, match=r"init\.kind: multiplies the embedding, which norm layer dyt multiplies"):
        Experiment.from_mapping({"init": "scaled_embedding", "norm.layer": "dyt"})


@pytest.mark.parametrize("family", RESIDUAL)
def test_a_mix_initialises_each_layer_by_its_own_placement(family):
    found = weights(family, 4, {"norm": "mix", "norm.alpha": 0.5, "norm.first": "deepnorm"})["down"]
    xavier = (8 * 4) ** -0.25 * math.sqrt(2 / (HIDDEN + MLP))
    assert [std(m) for m in found] == pytest.approx([xavier, xavier, 0.02, 0.02], rel=0.03)


@pytest.mark.parametrize(("family", "kind"), WIRED)
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
