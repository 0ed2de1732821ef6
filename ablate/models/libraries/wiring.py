"""A library's layers in the wiring of a placement: the same attention and MLP, with our norms and residuals."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from ablate.models.base import QKVNorm, build_qkv_norm, build_site, check_drop
from ablate.models.libraries.families import Family
from ablate.norms import Placement, Projection, Stack
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


def exchange(model: nn.Module, layer: NormLayer, final: str | None) -> None:
    """Replace all norms of the library in `model` by norms of `layer`; the one before the head is called `final`."""
    for name, norm in list(iterate_norms(model)):
        parent, _, own = name.rpartition(".")
        new = layer.at("final" if name == final else "").build(_width(norm))
        setattr(model.get_submodule(parent), own, ChannelsFirst(new) if type(norm).__name__ in _SECOND else new)


def _width(norm: Any) -> int:
    shape = getattr(norm, "normalized_shape", None) or norm.weight.shape
    return int(shape[-1])


FUSED = "qkv"


class Sublayer(nn.Module):
    """A library's modules one after another: x [batch, tokens, d] -> what is added to the residual stream. Further
    arguments of the layer go to the first."""

    def __init__(self, layer: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        for name in names:
            self.add_module(name.rpartition(".")[2], layer.get_submodule(name))

    def forward(self, x: Tensor, **more: Any) -> Tensor:
        first, *rest = self.children()
        output = first(x, **more)
        y: Tensor = (
            output[0] if isinstance(output, tuple) else output
        )  # transformers' attention returns its weights too
        for module in rest:
            y = module(y)
        return y


class Layer(nn.Module):
    """One layer of a library's model with the norms and residuals of a placement. It is called as the library's is."""

    def __init__(self, layer: nn.Module, family: Family, norm: Placement, index: int, stack: Stack) -> None:
        super().__init__()
        drop = layer.get_submodule(family.drop) if family.drop else nn.Identity()
        self.attn_residual, self.mlp_residual = norm.wire(build_site(norm, index, stack, partial(copy.deepcopy, drop)))
        if not isinstance(drop, nn.Identity):
            both = self.attn_residual, self.mlp_residual
            check_drop(norm.at(index, stack.depth), "model.drop_path_rate", type(drop), *both)
        self.attn, self.mlp = Sublayer(layer, family.attn), Sublayer(layer, family.mlp)
        attention = next(iter(self.attn.children()))
        self.taken = frozenset(inspect.signature(type(attention).forward).parameters)
        self.arguments = list(inspect.signature(type(layer).forward).parameters)[2:]

    def forward(self, x: Tensor, *args: Any, **more: Any) -> Tensor:
        named = dict(zip(self.arguments, args, strict=False)) | more
        given = {name: value for name, value in named.items() if value is not None or name in self.taken}
        x = self.attn_residual(x, partial(self.attn, **given) if given else self.attn)
        x = self.mlp_residual(x, self.mlp)
        return x


class PerHead(nn.Module):
    """A norm on each head of [..., heads * head_dim]."""

    def __init__(self, norm: nn.Module, head_dim: int) -> None:
        super().__init__()
        self.norm, self.head_dim = norm, head_dim

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.unflatten(-1, (-1, self.head_dim))).flatten(-2)
        return y


def find_norm(model: nn.Module, names: tuple[str, ...]) -> str | None:
    """Return the first of `names` that is a norm of `model`."""
    known = {name for name, _ in iterate_norms(model)}
    return next((name for name in names if name in known), None)


def rewire(model: nn.Module, family: Family, norm: Placement, stack: Stack) -> Placement:
    """Give the layers of a library's `model` the wiring of `norm`, and the norms that it asks for. Return `norm` with
    norm layers that can be built."""
    layers: Any = model.get_submodule(family.blocks)
    if norm.layer.of_library:
        norm = norm.model_copy(update={"layer": BuiltLayer(like=layers[0].get_submodule(family.norm))})
    for index, layer in enumerate(layers):
        _norm_inside(layer, family, norm, norm.at(index, stack.depth), stack)
        layers[index] = Layer(layer, family, norm, index, stack)
    if norm.at(0, stack.depth).embedding_norm:
        embedding = model.get_submodule(family.embedding)  # it keeps its name: its weight may be tied
        embedding.add_module("after", norm.layer.at("embedding").build(stack.hidden))
        embedding.register_forward_hook(lambda module, args, output: module.after(output))
    final = find_norm(model, family.final_norm)
    if final and not norm.final_norm:
        _put(model, final, nn.Identity())
    elif not final and norm.final_norm:
        head = model.get_submodule(family.head)
        head.add_module("before", norm.layer.at("final").build(stack.hidden))
        head.register_forward_pre_hook(lambda module, args: (module.before(args[0]), *args[1:]))
    return norm


def _norm_inside(layer: nn.Module, family: Family, norm: Placement, placed: Placement, stack: Stack) -> None:
    """Put norms behind the queries, keys and values and before the output projections, if they are requested."""
    inputs = {"o": stack.heads * stack.head_dim, "down": stack.mlp}
    for name, role in family.roles.items():
        if placed.inner_norm and role in inputs:
            _put(layer, name, nn.Sequential(norm.layer.build(inputs[role]), layer.get_submodule(name)))
        elif role == FUSED and not isinstance(heads := build_qkv_norm(norm, placed, stack), nn.Identity):
            fused = [nn.Unflatten(-1, (3 * stack.heads, stack.head_dim)), heads, nn.Flatten(-2)]
            _append(layer, name, nn.Sequential(*fused))
        elif role in FUSED and (separate := _norm_of(role, norm, placed, stack)) is not None:
            _append(layer, name, separate)


def _norm_of(role: str, norm: Placement, placed: Placement, stack: Stack) -> nn.Module | None:
    """Return the norm behind a projection of its own, q, k or v; None if there is none."""
    both = build_qkv_norm(norm, placed, stack)
    own: nn.Module | None = getattr(both, role, None)
    if own is None or isinstance(own, nn.Identity):
        return None
    return PerHead(own, stack.head_dim) if isinstance(both, QKVNorm) else own


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)


def _append(model: nn.Module, name: str, module: nn.Module) -> None:
    _put(model, name, nn.Sequential(model.get_submodule(name), module))


def list_projections(model: nn.Module, family: Family | None, layers: Any) -> list[tuple[str, int, nn.Module]]:
    """Return (role, layer, module) of the matrices of the library's own layers, in their order; for an unknown family
    the role is "matrix"."""
    if family is not None:
        return [
            (role, i, layer.get_submodule(name))
            for i, layer in enumerate(layers)
            for name, role in family.roles.items()
        ]
    return [("matrix", i, module) for i, layer in enumerate(layers) for module in layer.modules() if is_matrix(module)]


def is_matrix(module: nn.Module) -> bool:
    """Return whether a module multiplies its input with its weight: a linear layer or a convolution."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and weight.ndim >= 2 and not isinstance(module, nn.Embedding)


def split_projection(role: str, layer: int, module: Any) -> list[Projection]:
    """Return the matrices of one module [out, in] by role."""
    weight = module.weight.T if type(module).__name__ == "Conv1D" else module.weight  # of transformers: [in, out]
    parts = weight.chunk(3) if role == FUSED else [weight]
    return [Projection(own, layer, part) for own, part in zip(role if role == FUSED else [role], parts, strict=True)]
