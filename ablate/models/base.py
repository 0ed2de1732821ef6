"""The interface that every model implements, and code that the models share. Configurations: `config`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.distributed.matrices import Fused
from ablate.models.config import ALL, ModelConfig
from ablate.norms import Initialization, Placement, Projection, Site, Stack
from ablate.norms.placement import refuse_state
from ablate.norms.residuals import Multiplier, repeat

_WRAPPED = "_checkpoint_wrapped_module."  # what torch puts into the names of parameters of a checkpointed block


def strip_wrapper(name: str) -> str:
    """Return the parameter's name in the model, without the prefixes of torch's wrappers."""
    return name.replace(_WRAPPED, "")


def unwrap(block: nn.Module) -> nn.Module:
    """Return a block itself, where torch has wrapped it to keep its input alone."""
    inner: nn.Module = getattr(block, _WRAPPED.rstrip("."), block)
    return inner


class Model(nn.Module):
    """A model built from its configuration: `forward` gives float logits [..., classes]."""

    config: ModelConfig
    placement: Placement | None = None
    """That of its first layer, where its layers may hand on more than one stream."""
    multipliers: Any = None
    """The `ablate.optim.parametrizations.Multipliers` of its parametrisation; None: there are none."""
    masks_documents: bool = False
    """Whether the first token of a document is marked (`ablate.models.attention.read_starts`), from which on nothing
    before it is attended to. A family that can do this says so by `ModelConfig.masks_documents`."""
    fused_matrices: Mapping[str, Fused] | None = None
    """Name of a parameter -> the matrices that are fused in it. What shards the model sets it, as `projections` are
    views of whole parameters; None: they show it."""

    def scale_output(self, multiplier: nn.Module) -> None:
        """Apply `multiplier` to the input of the head. A family that has this, and `scale_queries`, says so by
        `ModelConfig.scales`."""
        raise NotImplementedError

    def scale_queries(self, factor: float) -> None:
        """Multiply the queries of every layer by `factor`."""
        raise NotImplementedError

    def projections(self) -> Iterator[Projection]:
        """The weight matrices that `init` and a placement's gains apply to, in a fixed order."""
        raise NotImplementedError

    def attach_head(self, head: nn.Module) -> None:
        """Replace the family's own head by `head`. It is called with the hidden state of the patches after the final
        norm [batch, patches, d], row by row, and the model returns its output. A family that has
        this says so by `ModelConfig.takes_head`.

        Such a family's `forward` also takes `kept` [batch, n], the places of those patches alone that the layers are to
        see, which it hands on to the head as a second argument."""
        raise NotImplementedError

    def blocks(self) -> nn.ModuleList | nn.Sequential:
        """Return the container of the layers, in order: `layers`, unless the model calls it otherwise."""
        layers: nn.ModuleList | nn.Sequential = self.layers  # type: ignore[assignment]
        return layers

    def heads(self) -> Iterable[nn.Module]:
        """Modules after the layers that are compiled on their own when the layers are; they have no parameters."""
        return ()

    def parts(self) -> dict[str, tuple[str, ...]]:
        """Part -> the state dict names that belong to it: parameters, buffers and modules that hold them. A sublayer of
        a layer includes its residual wiring: the norms and learned factors of its placement.
        """
        raise NotImplementedError

    def embeddings(self) -> tuple[str, ...]:
        """The state dict names of the input embedding, without the norms and factors after it."""
        raise NotImplementedError

    def count_uses(self, part: str) -> int:
        """Return how often one item, a token or an image, is multiplied by the weights of a part of `parts`. Here: of a
        model whose items are tokens, which are looked up in the embedding and not multiplied."""
        return 0 if part.startswith("embedding") else 1

    def no_weight_decay(self) -> set[str]:
        """Names of parameters with two or more dimensions that get no weight decay, beside those that the wiring of a
        placement names."""
        return set()

    def after_update(self) -> None:
        """Change the weights after an update, and before the first, as an option of the model asks for; a placement has
        `Placement.after_update`. Here: nothing."""

    def parameter_count(self) -> int:
        """The number of trainable parameters."""
        return sum(p.numel() for p in self.parameters() if p.requires_grad)


def match_parts(parts: Iterable[str], wanted: str) -> list[str]:
    """Return the members of `parts` that a name selects."""
    return [part for part in parts if wanted in (part, ALL) or part.startswith(f"{wanted}.")]


def list_tensors(model: Model, wanted: str) -> set[str]:
    """Return the state dict names of a part's tensors in `model`."""
    return set().union(*(names for part, names in list_tensors_by_part(model).items() if match_parts([part], wanted)))


def list_tensors_by_part(model: Model) -> dict[str, set[str]]:
    """Return part -> the state dict names of its tensors in `model`. Each tensor is looked up once: a deep model has
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
    """Return whether `prefixes` names a tensor or a module that contains it."""
    return any(name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in ("", ".") for prefix in prefixes)


def name_sublayers(prefix: str, layers: Iterable[nn.Module]) -> dict[str, tuple[str, ...]]:
    """Return the `Model.parts` layers.INDEX.attn and layers.INDEX.mlp for layers named `prefix`.INDEX in the model."""
    return {
        f"layers.{i}.{name}": (f"{prefix}.{i}.{name}", f"{prefix}.{i}.{name}_residual")
        for i, layer in enumerate(layers)
        for name in ("attn", "mlp")
        if hasattr(layer, name)
    }


def build_site(norm: Placement, index: int, stack: Stack, drop: Callable[[], nn.Module] = nn.Identity) -> Site:
    """Return the site of one layer, with `norm.layer` on the hidden state as its norms."""
    sublayers = 1 + (stack.mlp > 0)
    return Site(index, stack.depth, stack.hidden, make_norm_factory(norm, stack.hidden), drop, sublayers=sublayers)


def build_ends(norm: Placement, stack: Stack) -> tuple[nn.Module, nn.Module]:
    """Return what makes the first state of the embedding, and the input of the final norm of the last state. Without
    layers nothing travels between them."""
    if not stack.depth:
        return nn.Identity(), nn.Identity()
    site = replace(build_site(norm, stack.depth, stack), place="final")
    first, last = norm.at(0, stack.depth), norm.at(stack.depth - 1, stack.depth)
    return first.open(replace(site, index=0)) or nn.Identity(), _Checked(last.close(site) or nn.Identity(), last.kind)


class _Checked(nn.Module):
    """What a placement closes the last state with, or a sentence where that is no tensor."""

    def __init__(self, close: nn.Module, kind: str) -> None:
        super().__init__()
        self.close, self.kind = close, kind

    def forward(self, state: Any) -> Tensor:
        x = self.close(state)
        if not isinstance(x, Tensor):
            refuse_state(x, self.kind)
        return x


def find_stack(model: nn.Module) -> str:
    """Return the name of the stack of layers in a `model` of any kind: the list of modules of one class with the most
    parameters. Experts of a layer and parts of an embedding are also such lists, but smaller. Raises AblateError."""
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) and len(set(map(type, module))) == 1
    }
    if not lists:
        raise AblateError(f"No stack of layers was found in {type(model).__name__}: no list of modules of one class.")
    return max(lists, key=lambda name: sum(p.numel() for p in lists[name].parameters()))


def check_drop(placed: Placement, setting: str, drop: type[nn.Module], *residuals: nn.Module) -> None:
    """Raise ConfigError if the wiring of a layer leaves out its stochastic depth, a module of the class `drop` that
    `setting` asks for."""
    if any(drop not in map(type, residual.modules()) for residual in residuals):
        text = f"placement {placed.kind} does not support stochastic depth: its wiring does not call site.drop()"
        raise ConfigError([Problem(setting, text)])


def make_norm_factory(norm: Placement, dim: int) -> Callable[..., nn.Module]:
    """Return a function that builds one norm layer on `dim` features, at a place (`NormLayer.at`) and with a start of
    its gain."""

    def build(place: str = "", start: float = 1.0) -> nn.Module:
        built = norm.layer.at(place).build(dim)
        if start != 1:
            nn.init.constant_(built.weight, start + (norm.layer.no_gain or 0.0))  # type: ignore[arg-type]
        return built

    return build


class Bias(nn.Module):
    """`x + bias` along the features [dim], which `after` dimensions follow."""

    def __init__(self, dim: int, after: int = 0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.view(-1, *[1] * self.after).to(x.dtype)


def build_bias(norm: nn.Module, dim: int, after: int = 0) -> nn.Module:
    """Return the bias of normed summed inputs, zero at first, one for each neuron; the identity if `norm` has a
    shift."""
    has_shift = any(name.rpartition(".")[2] == "bias" for name, _ in norm.named_parameters())
    return nn.Identity() if has_shift else Bias(dim, after)


class QKVNorm(nn.Module):
    """Norms on the queries, keys and values of each head: [..., heads + 2 kv_heads, head_dim] -> the same."""

    def __init__(self, heads: int, kv_heads: int, q: nn.Module, k: nn.Module, v: nn.Module) -> None:
        super().__init__()
        self.heads = [heads, kv_heads, kv_heads]
        self.q, self.k, self.v = (repeat(norm, times) for norm, times in zip((q, k, v), self.heads, strict=True))

    def forward(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.split(self.heads, dim=-2)
        return torch.cat([self.q(q), self.k(k), self.v(v)], dim=-2)


class WideQKNorm(nn.Module):
    """Norms on all queries and on all keys of a token: [..., heads + 2 kv_heads, head_dim] -> the same."""

    def __init__(self, heads: int, kv_heads: int, q: nn.Module, k: nn.Module) -> None:
        super().__init__()
        self.heads = [heads, kv_heads, kv_heads]
        self.q, self.k = q, k

    def forward(self, qkv: Tensor) -> Tensor:
        q, k, v = qkv.split(self.heads, dim=-2)
        q, k = (norm(x.flatten(-2)).view_as(x) for norm, x in ((self.q, q), (self.k, k)))
        return torch.cat([q, k, v], dim=-2)


def build_qkv_norm(norm: Placement, placed: Placement, stack: Stack) -> nn.Module:
    """Return the norms on queries, keys and values [..., heads + 2 kv_heads, head_dim] in a layer whose placement is
    `placed`: those of the placement, the QK-norm of `norm`, or nothing."""
    heads, dim = (stack.heads, stack.kv_heads), stack.head_dim
    if placed.qkv_norm:
        return QKVNorm(*heads, *(norm.layer.build(dim) for _ in "qkv"))
    if not norm.has_qk_norm:
        return nn.Identity()
    if norm.qk_over == "head":
        return QKVNorm(*heads, norm.qk.build(dim), norm.qk.build(dim), nn.Identity())
    return WideQKNorm(*heads, *(norm.qk.build(count * dim) for count in heads))


def freeze(model: Model, parts: Iterable[str]) -> None:
    """Freeze the parameters of `parts`: they need no gradient."""
    frozen = list_tensors_in(model, parts)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in frozen:
            parameter.requires_grad_(False)


def list_tensors_in(model: Model, parts: Iterable[str]) -> set[str]:
    """Return the names of the tensors of `parts`."""
    return {name for part in parts for name in list_tensors(model, part)}


class EmbeddingScale(nn.Module):
    """`scale * x` with one learnable number, [1]."""

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((1,), initial))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


def build_embedding_scale(norm: Placement, init: Initialization, stack: Stack) -> nn.Module:
    """Return the factor of the embedding that the norm layer or the initialisation asks for."""
    if norm.layer.scales_embedding:
        return EmbeddingScale(stack.hidden**0.5)
    factor = init.embedding_multiplier(stack)
    return nn.Identity() if factor == 1 else Multiplier(factor)
