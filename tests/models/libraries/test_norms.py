"""The norm layers of the libraries, and their exchange."""

from importlib import import_module

import pytest
import timm.layers
import torch
from models.libraries.cases import KNOWN, OTHERS, classes_of, inputs_of, shape_of
from models.libraries.test_identity import build_theirs
from norms.cases import shaken
from torch import nn

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.models.libraries.wiring import _LAST, _SECOND
from ablate.norms import norm_layers

EPS, DIM = 1e-3, 12


def find_class(name):
    """The class called `name`, of torch, timm or transformers."""
    for place in (timm.layers, nn):
        if hasattr(place, name):
            return getattr(place, name)
    words = {"SeedOssRMSNorm": "seed_oss"}.get(name, name.removesuffix("RMSNorm").lower())
    return getattr(import_module(f"transformers.models.{words}.modeling_{words}"), name)


@pytest.mark.parametrize("name", [*_LAST, *_SECOND])
def test_what_the_table_has_is_a_norm_of_its_dimension(name):
    """By the formula of its kind, whose epsilon stands where the table says."""
    module = shaken(find_class(name)(DIM, eps=EPS), 0.3).double()
    assert getattr(module, (_LAST | _SECOND)[name]) == EPS
    x = torch.randn(2, 5, 3, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    centred = x - x.mean(-1, keepdim=True) if "Layer" in name or "Simple" in name else x
    square = x.var(-1, keepdim=True) if "Simple" in name else centred.square().mean(-1, keepdim=True)
    weight = module.weight + ("Gemma" in name)
    expected = (x if "Simple" in name else centred) * torch.rsqrt(square + EPS) * weight
    expected = expected + module.bias if getattr(module, "bias", None) is not None else expected
    y = module(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1) if name in _SECOND else module(x)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def build(settings, more):
    return Experiment.from_mapping({"model": settings}, more).build_model(classes_of(settings), shape_of(settings))


def list_library_norms(model):
    return [module for module in model.modules() if "Norm" in type(module).__name__ and not list(module.children())]


@pytest.mark.parametrize("case", [*KNOWN, *OTHERS])
def test_every_norm_of_the_library_is_exchanged(case):
    settings = (KNOWN | OTHERS)[case]
    before = list_library_norms(build_theirs(settings))
    model = build(settings, {"norm.layer": "dyt"} if settings["kind"] == "timm" else {"norm.layer": "rmsnorm1p"})
    ours = [m for m in model.modules() if type(m).__name__ in ("DynamicTanhModule", "OffsetRMSNormModule")]
    assert len(ours) == len(before)
    assert sorted(m.weight.numel() for m in ours) == sorted(m.weight.numel() for m in before)
    assert {id(m) for m in list_library_norms(model)} <= {id(m) for m in ours}
    inputs = inputs_of(settings)
    model(inputs.float() if inputs.is_floating_point() else inputs).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("case", ["gpt2", "bert", "vit-qk", "swin", "convnext", "opt"])
def test_exchanged_by_the_same_layer_it_computes_the_same(case):
    """On channels first and last: LayerNorm of ours in the place of theirs."""
    settings = (KNOWN | OTHERS)[case]
    theirs = build_theirs(settings)
    epsilons = {module.eps for module in list_library_norms(theirs)}
    assert len(epsilons) == 1
    ours = build(settings, {"norm.layer": {"kind": "layernorm", "eps": epsilons.pop()}}).double().eval()
    own = set(ours.state_dict())
    state = {f"net.{name}": value for name, value in theirs.state_dict().items()}
    for name in set(state) - own:  # channels first
        path, _, end = name.rpartition(".")
        state[f"{path}.norm.{end}"] = state.pop(name)
    ours.load_state_dict(state, strict=False)
    assert own - set(state) <= {"shape"}
    inputs = inputs_of(settings)
    expected = theirs(input_ids=inputs).logits if settings["kind"] == "hf" else theirs(inputs)
    torch.testing.assert_close(ours(inputs), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        ({"kind": "timm", "name": "resnet18"}, {"norm.layer": "rmsnorm"}, r"norm\.layer: timm resnet18 .* BatchNorm2d"),
        (KNOWN["qwen3"], {"norm.layer": {"kind": "groupnorm", "groups": 8}}, r"groups: must divide the 12 features"),
        (KNOWN["gpt2"], {"norm.layer": "batchnorm"}, r"norm\.layer\.kind: its statistics include future tokens"),
        (KNOWN["gpt2"], {"norm.layer": "dyt"}, r"dyt asks for a learnable factor .*, which model hf gpt2"),
    ],
)  # fmt: skip
def test_what_cannot_be_exchanged_is_refused(settings, more, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping({"model": settings}, more)


@pytest.mark.parametrize("part", ["norm", "norm.layer", "norm.qk", "init"])
@pytest.mark.parametrize("family", ["llama", "vit"])
def test_a_model_of_ours_has_nothing_that_is_own(family, part):
    with pytest.raises(
        ConfigError,
        match=rf"{part}\S*: library keeps what a library has built, and model {family} is not from a library",
    ):
        Experiment.from_mapping({"model": family, part: "library"})


def test_own_is_not_listed_among_the_choices():
    assert "library" not in [*norm_layers]
    assert "library" in norm_layers.accepted
