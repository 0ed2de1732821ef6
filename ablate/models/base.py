"""The contract of model families: what is asked of a model, and what the models share. Configurations: `config`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ablate.models.config import ALL, ModelConfig
from ablate.norms import Placement, Projection, Site, Stack

_WRAPPED = "_checkpoint_wrapped_module."  # what torch puts into the names of parameters of a checkpointed block


def strip_wrapper(name: str) -> str:
    """Return the name of a parameter as the model has it, whatever torch has wrapped."""
    return name.replace(_WRAPPED, "")


def unwrap(block: nn.Module) -> nn.Module:
    """Return a block itself, where torch has wrapped it to keep its input alone."""
    inner: nn.Module = getattr(block, _WRAPPED.rstrip("."), block)
    return inner


class Model(nn.Module):
    """A model built from its configuration: `forward` gives float logits [..., classes]."""

    config: ModelConfig

    def projections(self) -> Iterator[Projection]:
        """The weight matrices that `init` and a placement's gains apply to, in a fixed order."""
        raise NotImplementedError

    def blocks(self) -> nn.ModuleList | nn.Sequential:
        """The layers, in their order, in the container that the model has them in."""
        raise NotImplementedError

    def heads(self) -> Iterable[nn.Module]:
        """What comes after the layers and is worth compiling on its own where they are; it has no parameters."""
        return ()

    def parts(self) -> dict[str, tuple[str, ...]]:
        """Part -> the names, in the state dict, of what belongs to it: parameters, buffers and modules of such.

        Of each layer a sublayer goes with its residual wiring: the norms and learned factors of its placement.
        """
        raise NotImplementedError

    def embeddings(self) -> tuple[str, ...]:
        """The names, in the state dict, of what embeds an input, without the norms and factors behind it."""
        raise NotImplementedError

    def count_uses(self, part: str) -> int:
        """Return how often one item, a token or an image, is multiplied with the weights of a part of `parts`."""
        raise NotImplementedError

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that never decay although they have two or more dimensions."""
        return set()

    def parameter_count(self) -> int:
        """The number of trainable parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


def match_parts(parts: Iterable[str], wanted: str) -> list[str]:
    """Return those of `parts` that a name stands for."""
    return [part for part in parts if wanted in (part, ALL) or part.startswith(f"{wanted}.")]


def list_tensors(model: Model, wanted: str) -> set[str]:
    """Return the names, in the state dict of `model`, of the tensors of a part."""
    return set().union(*(names for part, names in list_tensors_by_part(model).items() if match_parts([part], wanted)))


def list_tensors_by_part(model: Model) -> dict[str, set[str]]:
    """Return part -> the names, in the state dict of `model`, of its tensors. One look at each tensor: a deep model has
    thousands of parts."""
    parts = model.parts()
    owners: dict[str, list[str]] = {}
    for part, prefixes in parts.items():
        for prefix in prefixes:
            owners.setdefault(prefix, []).append(part)
    tensors: dict[str, set[str]] = {part: set() for part in parts}
    for name in model.state_dict():
        words = name.split(".")
        for end in range(1, len(words) + 1):
            for part in owners.get(".".join(words[:end]), ()):
                tensors[part].add(name)
    return tensors


def list_filled_parts(model: Model) -> list[str]:
    """Return the parts of `model` that have tensors."""
    return [part for part, names in list_tensors_by_part(model).items() if names]


def is_inside(name: str, prefixes: Sequence[str]) -> bool:
    """Return whether a tensor is one of those named by `prefixes`, or within a module that is."""
    return any(name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in ("", ".") for prefix in prefixes)


def name_sublayers(prefix: str, layers: Iterable[nn.Module]) -> dict[str, tuple[str, ...]]:
    """Return `Model.parts` of layers that are called `prefix`.INDEX in the model: layers.INDEX.attn and
    layers.INDEX.mlp."""
    return {
        f"layers.{i}.{name}": (f"{prefix}.{i}.{name}", f"{prefix}.{i}.{name}_residual")
        for i, layer in enumerate(layers)
        for name in ("attn", "mlp")
        if hasattr(layer, name)
    }


def build_site(norm: Placement, index: int, stack: Stack, drop: Callable[[], nn.Module] = nn.Identity) -> Site:
    """Return the site of one layer, whose norms are `norm.layer` on the hidden state."""
    return Site(index, stack.depth, stack.hidden, make_norm_factory(norm, stack.hidden), drop)


def make_norm_factory(norm: Placement, dim: int) -> Callable[[], nn.Module]:
    """Return a function that builds one norm layer on `dim` features."""
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
    frozen = list_tensors_in(model, parts)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in frozen:
            parameter.requires_grad_(False)


def list_tensors_in(model: Model, parts: Iterable[str]) -> set[str]:
    """Return the names of the tensors of `parts`."""
    return {name for part in parts for name in list_tensors(model, part)}
