"""Models without layers, and with layers of attention alone, of every family and with every placement."""

import pytest
import torch
from norms.cases import RESIDUAL, WIRED, settings_of, shaken
from torch import nn

from ablate.experiment.tree import Experiment

LAYER = {"llama": "rmsnorm", "vit": "layernorm"}
every_case = pytest.mark.parametrize(("family", "kind"), WIRED)


def learns(model, inputs):
    """All parameters get a gradient."""
    logits = model(inputs)
    assert logits.shape[-1] == 11
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype)
    (logits * weight).sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0]
    assert not still
    return logits


@every_case
def test_without_layers_there_are_embedding_norms_and_head(tiny, family, kind):
    experiment, model, inputs = tiny(family, settings_of(kind, LAYER[family], **{"model.layers": 0}))
    assert experiment.model.layer_parameters() == 0
    assert not list(model.blocks())
    experiment.norm.prepare(model, lambda: inputs)
    if family == "llama":
        logits = learns(model, inputs)
        norm = nn.Identity() if kind == "ngpt" else experiment.norm.layer.build(16).double()
        x = model.embed_tokens.weight[inputs]
        if kind == "peri":  # its embedding is normed, whatever comes after it
            x = norm(x)
        torch.testing.assert_close(logits, norm(x) @ model.lm_head.weight.T)
    else:  # only the class token reaches the head
        images = model(inputs)
        assert torch.equal(images[0], images[1])
    names = {name.partition(".")[0] for name in model.parts()}
    assert names == {"embedding", "final_norm", "head"}


@every_case
def test_layers_of_attention_alone(tiny, family, kind):
    settings = settings_of(kind, LAYER[family], **{"model.layers": 2, "model.sublayers": "attn"})
    experiment, model, inputs = tiny(family, settings)
    assert not [name for name, _ in model.named_parameters() if "mlp" in name]
    experiment.norm.prepare(model, lambda: inputs)
    learns(shaken(model, 0.05), inputs)
    roles = {p.role for p in model.projections() if p.layer is not None}
    assert roles == {"q", "k", "v", "o"}
    matrices = sum(p.weight.numel() for p in model.projections() if p.layer is not None)
    assert matrices == experiment.model.layer_parameters()
    assert [name for name in model.parts() if name.startswith("layers")] == ["layers.0.attn", "layers.1.attn"]


@every_case
def test_attention_alone_is_the_attention_of_a_whole_layer(tiny, family, kind):
    """The sublayer's output is that of the whole layer before its MLP, where the two are not tied together."""
    settings = settings_of(kind, LAYER[family], **{"model.layers": 1})
    _, whole, inputs = tiny(family, settings)
    _, alone, _ = tiny(family, {**settings, "model.sublayers": "attn"})
    alone.load_state_dict({name: value for name, value in whole.state_dict().items() if "mlp" not in name})
    (layer,) = whole.blocks()
    is_pair = kind == "b2t"  # of one layer's two sublayers
    layer.mlp_residual.forward = lambda x, f: x[0] if is_pair else x
    torch.testing.assert_close(alone(inputs), whole(inputs), atol=0, rtol=0)


@pytest.mark.parametrize("family", RESIDUAL)
def test_the_parts_are_all_of_the_model_and_do_not_overlap(tiny, family):
    for settings in ({}, {"norm": "peri"}, {"norm": "admin"}, {"model.sublayers": "attn"}, {"norm": "layerscale"}):
        _, model, _ = tiny(family, settings)
        prefixes = [prefix for names in model.parts().values() for prefix in names]
        for name in model.state_dict():
            assert sum(name == p or name.startswith(f"{p}.") for p in prefixes) == 1, name


def test_a_mix_without_layers_has_the_embedding_norm_of_its_first_layer(tiny):
    for settings, normed in (
        ({"norm": "mix", "norm.first": "peri"}, True),
        ({"norm": "mix", "norm.first": "peri", "norm.alpha": 0.0}, False),
        ({"norm": "mix", "norm.second": "peri", "norm.alpha": 0.0}, True),
        ({"norm": "by_depth", "norm.ranges": {"a": {"until": 1.0, "placement": "peri"}}}, True),
    ):
        _, model, _ = tiny("llama", {**settings, "model.layers": 0})
        assert (len(list(model.embed_norm.parameters())) > 0) == normed


def test_the_mlp_is_no_matter_where_there_is_none():
    """Groups need not divide the width of an MLP that no layer has."""
    settings = {"norm": "subln", "norm.layer": {"kind": "groupnorm", "groups": 4}, "model.mlp": 6, "model.hidden": 16}
    Experiment.from_mapping({**settings, "model.heads": 2, "model.sublayers": "attn"})
