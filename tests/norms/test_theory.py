"""What the papers derive of the schemes, on whole models."""

import pytest
import torch
from norms import reference
from torch import nn


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


@pytest.mark.parametrize("layer", reference.ELEMENTWISE)
def test_elementwise_functions_scale_the_token_embedding(tiny, layer):
    """By a learnable number that starts at sqrt(d), where tokens are looked up: Zhu et al. 2025, arXiv 2503.10622;
    arXiv 2512.10938."""
    _, model, tokens = tiny("llama", {"norm.layer": layer})
    assert model.embed_scale.scale.item() == pytest.approx(16**0.5)
    seen = []
    model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(tokens)
    torch.testing.assert_close(seen[0], 4.0 * model.embed_tokens(tokens))
    for family, other in (("llama", "rmsnorm"), ("vit", layer)):
        _, without, _ = tiny(family, {"norm.layer": other})
        assert not any("embed_scale" in name for name, _ in without.named_parameters())


@pytest.mark.parametrize("family", ["llama", "vit"])
def test_slopes_start_by_site(tiny, family):
    """As the authors of DyT choose them in LLaMA with 7B parameters: larger beside attention."""
    _, model, _ = tiny(family, {"norm.layer": {"kind": "dyt", "attn": 0.8, "mlp": 0.2, "final": 0.1}})
    starts = {name: p.item() for name, p in model.named_parameters() if name.endswith("alpha")}
    by_site = {"attn_residual": 0.8, "mlp_residual": 0.2}
    for name, start in starts.items():
        assert start == pytest.approx(next((own for site, own in by_site.items() if site in name), 0.1)), name
    assert len(starts) == 2 * len(model.blocks()) + 1
