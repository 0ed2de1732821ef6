"""What the papers derive of the schemes, on whole models."""

import itertools

import pytest
import torch
from norms import reference
from norms.cases import RESIDUAL
from torch import nn


def test_minimax_is_deepnorm_moved_by_one_norm(tiny):
    """On an embedding that is normed, and with the final norm, the two have the same forward (X, section 1)."""
    _, minimax, inputs = tiny("llama", {"norm": "minimax", "init.std": 0.3})
    _, deepnorm, _ = tiny("llama", {"norm": "deepnorm", "norm.final_norm": False})
    with torch.no_grad():
        for p in minimax.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()), dtype=p.dtype))
    deepnorm.load_state_dict({k: v for k, v in minimax.state_dict().items() if k != "norm.weight"})
    chain = [r.norm for layer in minimax.layers for r in (layer.attn_residual, layer.mlp_residual)] + [minimax.norm]
    deepnorm.embed_norm = chain[0]
    for residual, norm in zip(
        (r for layer in deepnorm.layers for r in (layer.attn_residual, layer.mlp_residual)), chain[1:], strict=True
    ):
        residual.norm = norm
    torch.testing.assert_close(deepnorm(inputs), minimax(inputs), atol=1e-12, rtol=1e-12)


def variances(tiny, kind, family="llama", layers=16):
    """Of the stream after each layer at initialisation, over tokens and features."""
    settings = {"norm": kind, "model.layers": layers, "model.hidden": 64, "model.heads": 4, "init.std": 0.1}
    _, model, inputs = tiny(family, settings)
    found = []
    for block in model.layers if family == "llama" else model.vit.blocks:
        block.register_forward_hook(lambda _, args, x: found.append(x.var().item()))
    model(inputs)
    return found


@pytest.mark.parametrize("family", RESIDUAL)
def test_the_variance_of_pre_ln_grows_with_depth_and_that_of_lns_slower(tiny, family):
    """Sun et al. 2025 (C): what a layer adds does not shrink in Pre-LN and shrinks with depth in LNS."""
    pre, lns, post = (variances(tiny, kind, family) for kind in ("pre", "lns", "post"))
    assert pre == sorted(pre)
    assert lns == sorted(lns)
    added = [[b - a for a, b in itertools.pairwise(v)] for v in (pre, lns)]
    assert added[0][-1] > 0.5 * added[0][0]
    assert added[1][-1] < 0.35 * added[1][0]
    assert lns[-1] - lns[0] < 0.4 * (pre[-1] - pre[0])
    assert post[-1] == pytest.approx(post[0], rel=0.2)  # normed after every layer


class Skip(nn.Module):
    def forward(self, x, *args):
        return x


@pytest.mark.parametrize("kind", ["lns", "mix", "deepnorm"])
def test_a_layer_that_is_skipped_leaves_the_others_their_number(tiny, kind):
    """The published pruning code shifts the indices of the later layers, and with them LNS's scales and Mix-LN's
    placements."""
    half = {"norm.alpha": 0.5} if kind == "mix" else {}
    experiment, model, inputs = tiny("llama", {"norm": kind, "model.layers": 4, "init.std": 0.3, **half})
    kinds = [experiment.norm.at(index, 4).kind for index in range(4)]

    def rule(x, attn, mlp, n, s, nth, L):
        return x if nth == 2 else reference.LAYERS[kinds[nth - 1]](x, attn, mlp, n, s, nth, L)

    layer = experiment.norm.layer
    weights = reference.Weights(model.named_parameters(), layer.kind, layer.model_dump())
    expected = reference.llama(inputs, weights, 4, 2, kinds, rule, False, True)
    model.layers[1] = Skip()
    torch.testing.assert_close(model(inputs), expected, atol=1e-10, rtol=1e-10)


def test_dynamic_tanh_scales_the_token_embedding(tiny):
    """Zhu et al. 2025, arXiv 2503.10622: by a learnable number that starts at sqrt(d), where tokens are looked up."""
    _, model, tokens = tiny("llama", {"norm.layer": "dyt"})
    assert model.embed_scale.scale.item() == pytest.approx(16**0.5)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(tokens)
    torch.testing.assert_close(seen[0], 4.0 * model.embed_tokens(tokens))
    for family, layer in (("llama", "rmsnorm"), ("vit", "dyt")):
        _, other, _ = tiny(family, {"norm.layer": layer})
        assert not any("embed_scale" in name for name, _ in other.named_parameters())
