"""What the model families have in common: their configuration's fields and what a task asks of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ablate.config.base import Kind
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.norms import Initialization, Placement, Projection, Site, Stack

_WRAPPED = "_checkpoint_wrapped_module."  # what torch puts into the names of parameters of a checkpointed block


def own_name(name: str) -> str:
    """The name of a parameter as the model has it, whatever torch has wrapped."""
    return name.replace(_WRAPPED, "")


class Model(nn.Module):
    """A model built from its configuration: `forward` gives float logits [..., classes]."""

    def projections(self) -> Iterator[Projection]:
        """The weight matrices that `init` and a placement's gains apply to, in a fixed order."""
        raise NotImplementedError

    def blocks(self) -> Iterable[nn.Module]:
        """The layers, in their order."""
        raise NotImplementedError

    def heads(self) -> Iterable[nn.Module]:
        """What comes after the layers and is worth compiling on its own where they are; it has no parameters."""
        return ()

    def parts(self) -> dict[str, tuple[str, ...]]:
        """Part -> the names, in the state dict, of what belongs to it: parameters, buffers and modules of such.

        Of each layer a sublayer goes with its residual wiring: the norms and learned factors of its placement.
        """
        raise NotImplementedError

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that never decay although they have two or more dimensions."""
        return set()

    def parameter_count(self) -> int:
        """The number of trainable parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


class ModelConfig(Kind):
    """A model family and its size."""

    kind: str
    hidden: int = Field(gt=0)
    """Width d of the hidden state."""
    layers: int = Field(ge=0)
    """Number L of Transformer layers. 0: embedding, final norm and head alone."""
    heads: int = Field(gt=0)
    """Number of attention heads."""
    sublayers: Literal["both", "attn"] = "both"
    """What a layer has: attention and MLP, or attention alone. Factors of a placement go by the number of layers."""

    task: ClassVar[str]
    """The task that the family is trained for."""
    defaults: ClassVar[dict[str, Any]]
    """What the rest of an experiment defaults to with this family: dotted path -> value."""

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Model:
        """The initialised model. `classes`: vocabulary size or number of classes; `shape`: of one input."""
        raise NotImplementedError

    def stack(self) -> Stack:
        """What placements, norm layers and initialisations have to know of the model."""
        raise NotImplementedError

    def layer_parameters(self) -> int:
        """The number of weights in the matrices of the layers, which no vocabulary and no placement changes."""
        raise NotImplementedError

    def narrowed(self, share: float) -> dict[str, Any]:
        """The fields that leave about `share` of `layer_parameters`: narrower by its root and as deep as before, so
        that placements that go by depth keep their layers. Heads stay about as wide as they are, in steps of four
        features (rotary pairs and groups still fit), and become fewer."""
        hidden = self.hidden * share**0.5
        heads = max(1, round(hidden / (self.hidden // self.heads)))
        return {"hidden": heads * max(4, 4 * round(hidden / heads / 4)), "heads": heads}

    def validate(self) -> list[Problem]:  # type: ignore[override]
        """Return what is wrong between these fields."""
        if self.hidden % self.heads:
            return [Problem("heads", f"must divide hidden ({self.hidden})", self.heads)]
        return []


models: Registry[ModelConfig] = Registry("model", ModelConfig, default="llama", keeps=False)


ALL = "all"
"""The name that stands for all parts."""


def matching(parts: Iterable[str], wanted: str) -> list[str]:
    """Those of `parts` that a name stands for."""
    return [part for part in parts if wanted in (part, ALL) or part.startswith(f"{wanted}.")]


def tensors_of(model: Model, wanted: str) -> set[str]:
    """The names, in the state dict of `model`, of the tensors of a part."""
    parts = model.parts()
    prefixes = [prefix for part in matching(parts, wanted) for prefix in parts[part]]
    return {name for name in model.state_dict() if _is_inside(name, prefixes)}


def filled(model: Model) -> list[str]:
    """The parts of `model` that have tensors."""
    names = list(model.state_dict())
    return [part for part, prefixes in model.parts().items() if any(_is_inside(name, prefixes) for name in names)]


def _is_inside(name: str, prefixes: Sequence[str]) -> bool:
    return any(name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in ("", ".") for prefix in prefixes)


def sublayer_parts(prefix: str, layers: Iterable[nn.Module]) -> dict[str, tuple[str, ...]]:
    """`Model.parts` of layers that are called `prefix`.INDEX in the model: layers.INDEX.attn and layers.INDEX.mlp."""
    return {
        f"layers.{i}.{name}": (f"{prefix}.{i}.{name}", f"{prefix}.{i}.{name}_residual")
        for i, layer in enumerate(layers)
        for name in ("attn", "mlp")
        if hasattr(layer, name)
    }


def site_of(norm: Placement, index: int, stack: Stack, drop: Callable[[], nn.Module] = nn.Identity) -> Site:
    """The site of one layer, whose norms are `norm.layer` on the hidden state."""
    return Site(index, stack.depth, stack.hidden, norm_factory(norm, stack.hidden), drop)


def norm_factory(norm: Placement, dim: int) -> Callable[[], nn.Module]:
    """A function that builds one norm layer on `dim` features."""
    return lambda: norm.layer.build(dim)


class QKVNorm(nn.Module):
    """Norms on the queries, keys and values of each head: [..., heads + 2 kv_heads, head_dim] -> the same."""

    def __init__(self, norm: Placement, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads = [heads, kv_heads, kv_heads]
        self.q, self.k, self.v = (norm.layer.build(head_dim) for _ in "qkv")

    def forward(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.split(self.heads, dim=-2)
        return torch.cat([self.q(q), self.k(k), self.v(v)], dim=-2)


def freeze(model: Model, parts: Iterable[str]) -> None:
    """Take the gradient from the parameters of `parts`."""
    frozen = tensors_in(model, parts)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in frozen:
            parameter.requires_grad_(False)


def tensors_in(model: Model, parts: Iterable[str]) -> set[str]:
    """The names of the tensors of `parts`."""
    return {name for part in parts for name in tensors_of(model, part)}
