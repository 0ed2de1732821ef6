"""The norm layers of timm, torch and transformers, and their exchange by one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ablate.norms.feature_maps import ChannelsFirst
from ablate.norms.layers import LibraryLayer, NormLayer

_LAST = {  # class -> its attribute with epsilon; they norm the last dimension
    "LayerNorm": "eps",  # of torch and of timm
    "LayerNormFp32": "eps",
    "RMSNorm": "eps",
    "RmsNorm": "eps",
    "RmsNormFp32": "eps",
    "SimpleNorm": "eps",
    "SimpleNormFp32": "eps",
    **dict.fromkeys(("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"), "eps"),
    **dict.fromkeys(
        (
            *("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "MistralRMSNorm", "MinistralRMSNorm", "Phi3RMSNorm"),
            *("Olmo2RMSNorm", "Olmo3RMSNorm", "GraniteRMSNorm", "SmolLM3RMSNorm", "GlmRMSNorm", "Glm4RMSNorm"),
            *("ArceeRMSNorm", "SeedOssRMSNorm", "Exaone4RMSNorm"),
        ),
        "variance_epsilon",
    ),
}
_SECOND = dict.fromkeys(
    ("LayerNorm2d", "LayerNorm2dFp32", "RmsNorm2d", "RmsNorm2dFp32", "SimpleNorm2d", "SimpleNorm2dFp32"), "eps"
)
"""Those that norm the second of four dimensions, the channels of an image."""


class BuiltLayer(LibraryLayer):
    """The norm layer of a library's model as a layer of ours: it builds others like `like`."""

    like: Any

    def build(self, dim: int) -> nn.Module:
        cls, name = type(self.like), type(self.like).__name__
        bias = {"bias": False} if "LayerNorm" in name and self.like.bias is None else {}
        norm: nn.Module = cls(dim, eps=getattr(self.like, _LAST[name]), **bias)
        return norm


def iterate_norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) of the norms of `model` that can be exchanged."""
    for name, module in model.named_modules():
        if type(module).__name__ in (*_LAST, *_SECOND):
            yield name, module


def count_norms(model: nn.Module) -> int:
    """Return how many norms of the library `model` has."""
    return sum(1 for _ in iterate_norms(model))


def list_unknown(model: nn.Module) -> list[str]:
    """Return the classes of modules of `model` that are norms by their name and cannot be exchanged."""
    known = {*_LAST, *_SECOND}
    leaves = (type(module).__name__ for module in model.modules() if not list(module.children()))
    norms = (name for name in leaves if "norm" in name.lower() or name == "FrozenBatchNorm2d")
    return sorted({name for name in norms if name not in known})


def list_widths(model: nn.Module) -> list[int]:
    """Return the widths of the norms of `model`."""
    return sorted({_width(norm) for _, norm in iterate_norms(model)})


def exchange(model: nn.Module, layer: NormLayer) -> None:
    """Put norms of `layer` in the place of all norms of the library in `model`."""
    for name, norm in list(iterate_norms(model)):
        parent, _, own = name.rpartition(".")
        new = layer.build(_width(norm))
        setattr(model.get_submodule(parent), own, ChannelsFirst(new) if type(norm).__name__ in _SECOND else new)


def _width(norm: Any) -> int:
    shape = getattr(norm, "normalized_shape", None) or norm.weight.shape
    return int(shape[-1])
