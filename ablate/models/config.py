"""The contract of model families: what is asked of a configuration. It needs no torch; what is asked of a model is in
`base`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.bounds import MOST_LAYERS, MOST_WEIGHTS, MOST_WIDTH
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.norms import Initialization, Placement, Stack

if TYPE_CHECKING:
    from torch import Tensor

ALL = "all"
"""The name that stands for all parts of a model."""


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

    takes_head: ClassVar[bool] = False
    """Whether its models take a head of the task's own (`Model.attach_head`)."""
    per_token: ClassVar[bool] = False
    """Whether an item is a token, each with logits of its own; otherwise it is a whole input, such as an image."""

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Any:
        """Return the initialised model, an `ablate.models.base.Model`. `classes`: vocabulary size or number of classes;
        `shape`: of one input. It imports the model's module: a configuration is read without torch."""
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

    def count_classes(self, state: Mapping[str, Tensor]) -> int:
        """Return the number of classes of the family's own head by the weights of a trained model."""
        raise NotImplementedError

    def input_shape(self, state: Mapping[str, Tensor], length: int) -> tuple[int, ...]:
        """Return the shape of one input by the weights of a trained model. `length`: tokens of an input, where the
        weights do not say."""
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
