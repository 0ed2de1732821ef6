"""The contract of model families: their configuration's fields, and what is asked of a configuration and a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ablate.config.base import Kind
from ablate.config.bounds import MOST_LAYERS, MOST_WEIGHTS, MOST_WIDTH
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.norms import Initialization, Placement, Projection, Site, Stack

_WRAPPED = "_checkpoint_wrapped_module."  # what torch puts into the names of parameters of a checkpointed block


def strip_wrapper(name: str) -> str:
    """Return the name of a parameter as the model has it, whatever torch has wrapped."""
    return name.replace(_WRAPPED, "")


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


@dataclass(frozen=True)
class TensorPlan:
    """How ranks share the matrices of a layer, by the names of its modules."""

    by_output: tuple[str, ...]
    """Matrices of which each rank has some outputs."""
    by_input: tuple[str, ...]
    """Matrices of which each rank has some inputs; their outputs are summed over the ranks."""
    fused: Mapping[str, list[int]] = field(default_factory=dict)
    """End of a weight's name -> the outputs of each of the matrices that are fused in it."""
    counts: tuple[str, ...] = ()
    """Attributes of `attn` that count what a rank has its part of."""
    divided: Mapping[str, int] = field(default_factory=dict)
    """Fields of the configuration that must be multiples of the number of ranks, and their values."""


class ModelConfig(Kind):
    """A model family and its size."""

    kind: str
    hidden: int = Field(gt=0, le=MOST_WIDTH)
    """Width d of the hidden state."""
    layers: int = Field(ge=0, le=MOST_LAYERS)
    """Number L of Transformer layers. 0: embedding, final norm and head alone."""
    heads: int = Field(gt=0, le=MOST_WIDTH)
    """Number of attention heads."""
    sublayers: Literal["both", "attn"] = "both"
    """What a layer has: attention and MLP, or attention alone. Factors of a placement go by the number of layers."""

    task: ClassVar[str]
    """The task that the family is trained for."""
    defaults: ClassVar[dict[str, Any]]
    """What the rest of an experiment defaults to with this family: dotted path -> value."""

    per_token: ClassVar[bool] = False
    """Whether an item is a token, each with logits of its own; otherwise it is a whole input, such as an image."""

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Model:
        """The initialised model. `classes`: vocabulary size or number of classes; `shape`: of one input."""
        raise NotImplementedError

    def stack(self) -> Stack:
        """What placements, norm layers and initialisations have to know of the model."""
        raise NotImplementedError

    def layer_parameters(self) -> int:
        """The number of weights in the matrices of the layers, which no vocabulary and no placement changes."""
        raise NotImplementedError

    def sequence_length(self, shape: tuple[int, ...]) -> int:
        """Return how many tokens attend to one another in an input of `shape`."""
        raise NotImplementedError

    def tokens_per_item(self, shape: tuple[int, ...]) -> int:
        """Return how many tokens the layers see of one item."""
        return 1 if self.per_token else self.sequence_length(shape)

    def attention_flops(self, shape: tuple[int, ...]) -> int:
        """Return the FLOPs of the products of activations in the forward pass of one item: 4 d for each token that a
        token attends to, which in a causal model is about half of them, in each layer."""
        each = (2 if self.stack().causal else 4) * self.hidden * self.sequence_length(shape)
        return self.layers * each * self.tokens_per_item(shape)

    def vocabulary(self, classes: int) -> int:
        """Return the number of classes of the model's output for a corpus that has `classes`."""
        return classes

    def input_spec(self, state: Mapping[str, Tensor], length: int) -> tuple[int, tuple[int, ...]]:
        """Return (classes, shape of one input) by the weights of a trained model. `length`: tokens of an input, where
        the weights do not say."""
        raise NotImplementedError

    def tied_weights(self) -> dict[str, str]:
        """Return the names of weights that are another one: name -> name of that."""
        return {}

    def tensor_plan(self) -> TensorPlan | None:
        """Return how ranks share the matrices of a layer; None where they cannot."""
        return None

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
        if (weights := self.layer_parameters()) > MOST_WEIGHTS:
            size = f"{weights:,} weights, {4 * weights / 2**40:,.0f} TiB in float32"
            return [Problem("", f"the layers would have {size}. Accepted: at most {MOST_WEIGHTS:,}")]
        return []


models: Registry[ModelConfig] = Registry("model", ModelConfig, default="llama", keeps=False)


ALL = "all"
"""The name that stands for all parts."""


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
