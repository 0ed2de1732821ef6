"""ViT, against timm's own Vision Transformer with the same weights."""

from typing import Literal

import pytest
import timm
import torch
from norms import reference
from norms.cases import list_placements, shaken
from timm.layers import DropPath
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torch.utils._pytree import tree_leaves

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.norms import Placement, norm_layers, placements

DIGITS = {"img_size": 8, "patch_size": 2, "in_chans": 1, "num_classes": 10, "embed_dim": 48, "depth": 6, "num_heads": 4}


def ours(name, classes, shape, settings=None):
    experiment = Experiment.from_mapping({"model": name, "norm": "pre", "norm.layer": "layernorm"}, settings or {})
    return experiment.model.build(experiment.norm, experiment.init, classes, shape)


def our_name(name):
    return "vit." + name.replace(".norm1.", ".attn_residual.norm.").replace(".norm2.", ".mlp_residual.norm.")


def copied(reference, model):
    model.load_state_dict({our_name(name): tensor for name, tensor in reference.state_dict().items()})
    return model


@pytest.mark.parametrize(
    ("name", "theirs"), [("vit-tiny", "vit_tiny_patch16_224"), ("vit-small", "vit_small_patch16_224")]
)
def test_logits_equal_timm(name, theirs):
    reference = shaken(timm.create_model(theirs, pretrained=False), 0.05).eval()
    model = copied(reference, ours(name, 1000, (3, 224, 224))).eval()
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = reference(images)
        assert expected.std() > 0.5
        torch.testing.assert_close(model(images), expected, atol=1e-4, rtol=0)


def test_logits_and_gradients_equal_timm_on_digits():
    reference = shaken(VisionTransformer(**DIGITS), 0.05).double()
    model = copied(reference, ours("vit-digits", 10, (1, 8, 8)).double())
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weight = torch.randn(4, 10, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    expected, logits = reference(images), model(images)
    assert expected.std() > 0.2
    torch.testing.assert_close(logits, expected, atol=1e-10, rtol=0)
    for output in (expected, logits):
        (output * weight).sum().backward()
    gradients = dict(model.named_parameters())
    for name, p in reference.named_parameters():
        torch.testing.assert_close(gradients[our_name(name)].grad, p.grad, atol=1e-10, rtol=0)


def test_images_need_not_be_square():
    model = ours("vit", 5, (2, 4, 10))
    assert model.vit.pos_embed.shape[1] == 1 + 2 * 5
    assert model(torch.randn(3, 2, 4, 10)).shape == (3, 5)


@pytest.mark.parametrize("patch_size", [3, 16])
def test_no_pixel_is_left_out(patch_size):
    """timm would crop 8 x 8 to 6 x 6 in silence for a patch of 3."""
    with pytest.raises(ConfigError, match=rf"model\.patch_size: must divide .* \(8 x 8\) \(given: {patch_size}\)"):
        ours("vit-digits", 10, (1, 8, 8), {"model.patch_size": patch_size})


# ------------------------------------------------------------------------------------------- stochastic depth


def rates(model):
    return [block.mlp_residual.drop.drop_prob for block in model.vit.blocks]


@pytest.mark.parametrize(("layers", "rate"), [(6, 0.3), (12, 0.1), (2, 0.5)])
def test_drop_path_rises_linearly_as_in_timm(layers, rate):
    theirs_model = VisionTransformer(**{**DIGITS, "depth": layers, "drop_path_rate": rate})
    expected = [rate * i / (layers - 1) for i in range(layers)]
    found = rates(ours("vit-digits", 10, (1, 8, 8), {"model.drop_path": rate, "model.layers": layers}))
    assert found == pytest.approx(expected, abs=1e-6)
    for i, block in enumerate(theirs_model.blocks):
        for theirs in (block.drop_path1, block.drop_path2):
            assert found[i] == pytest.approx(getattr(theirs, "drop_prob", 0.0), abs=1e-7)


def without_branches(kind, x, block, index, depth):
    """A layer by its formula, where nothing is added to the stream."""
    kind = placements[kind]().at(index, depth).kind
    if kind in ("sandwich", "sandwich_scaled", "peri", "olmo2"):  # the norm of the output is a part of the branch
        return x
    own = reference.children(kind, index + 1)
    norms = [block.get_submodule(f"{side}.{name}") for side, names in own.items() for name in names]
    inside = {p for norm in norms for p in norm.parameters()}
    wiring = (block.attn_residual, block.mlp_residual)
    factors = [p for residual in wiring for p in residual.parameters() if p not in inside]
    return reference.LAYERS[kind](x, torch.zeros_like, torch.zeros_like, norms, factors, index + 1, depth)


@pytest.mark.parametrize("kind", list_placements("vit"))
@pytest.mark.parametrize("layer", norm_layers)
def test_the_branch_is_dropped_and_the_norms_of_the_stream_are_not(kind, layer):
    """With (nearly) everything dropped a layer does what its placement does where nothing is added."""
    if kind == "sandwich_scaled" and layer == "none":
        pytest.skip("refused by the configuration: it has no gain to start")
    model = shaken(ours("vit-digits", 10, (1, 8, 8), {"norm": kind, "norm.layer": layer, "model.drop_path": 0.5}), 0.05)
    model.placement.after_update(model, reference.UPDATES)
    x = 2 + torch.randn(3, 17, 48, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    x = model.double().open(x)
    for index, block in enumerate(model.train().vit.blocks):
        whole, nothing = block(x), without_branches(kind, x, block, index, 6)
        for drop in block.modules():
            if isinstance(drop, DropPath):
                drop.drop_prob = 1 - 1e-12
        dropped, whole, nothing = (
            [tensor for tensor in tree_leaves(state) if tensor is not None] for state in (block(x), whole, nothing)
        )
        for ours_, formula in zip(dropped, nothing, strict=True):
            torch.testing.assert_close(ours_, formula, atol=1e-12, rtol=1e-12)
        if index == 0:  # of which nothing is dropped otherwise
            assert not all(torch.allclose(a, b, atol=1e-3) for a, b in zip(whole, nothing, strict=True))


@pytest.mark.parametrize("kind", ["pre", "lns", "sandwich", "olmo2", "layerscale"])
def test_samples_are_dropped_whole_and_the_rest_is_scaled_up(kind):
    """Also behind a norm of the sublayer's output, which would undo the scaling."""
    block = ours("vit-digits", 10, (1, 8, 8), {"norm": kind, "model.drop_path": 0.5}).double().vit.blocks[-1]
    torch.manual_seed(0)
    x = torch.randn(400, 17, 48, dtype=torch.float64)
    block.mlp_residual.drop.drop_prob = 1 - 1e-12
    branch = block.attn_residual.eval()(x, block.attn) - x
    ratio = (block.train()(x) - x) / branch  # 0 where dropped, 1 / 0.5 where kept
    per_sample = ratio.flatten(1)[:, :1].round(decimals=6)
    torch.testing.assert_close(ratio, per_sample[:, :, None].expand_as(ratio), atol=1e-6, rtol=0)
    assert set(per_sample.flatten().tolist()) == {0.0, 2.0}
    assert 0.4 < (per_sample == 0).double().mean() < 0.6


def test_wiring_without_stochastic_depth_is_refused_where_it_is_asked_for(registries):
    class Bare(Placement):
        kind: Literal["bare"] = "bare"
        rule = source = diagram = "of this test"

        def residual(self, site):
            return Identity()

    class Identity(nn.Module):
        def forward(self, x, f):
            return x + f(x)

    placements.register(Bare)
    assert ours("vit-digits", 10, (1, 8, 8), {"norm": "bare"})
    with pytest.raises(ConfigError, match=r"model\.drop_path: placement bare does not support stochastic depth"):
        ours("vit-digits", 10, (1, 8, 8), {"norm": "bare", "model.drop_path": 0.1})


def test_stochastic_depth_is_off_in_evaluation():
    model = ours("vit-digits", 10, (1, 8, 8), {"model.drop_path": 0.9})
    plain = ours("vit-digits", 10, (1, 8, 8))
    plain.load_state_dict(model.state_dict())
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(model.eval()(images), plain.eval()(images))
    torch.manual_seed(0)
    assert not torch.equal(model.train()(images), plain.train()(images))
