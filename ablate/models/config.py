"""The interface of a model family's configuration, without torch. The interface of the model itself: `base`."""

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
"""The name that selects all parts of a model."""


@dataclass(frozen=True)
class TensorPlan:
    """How the ranks split the matrices of a layer, by the names of its modules."""

    by_output: tuple[str, ...]
    """Matrices split over the ranks by their outputs."""
    by_input: tuple[str, ...]
    """Matrices split over the ranks by their inputs; their outputs are summed over the ranks."""
    fused: Mapping[str, list[int]] = field(default_factory=dict)
    """Suffix of a weight's name -> the number of outputs of each matrix that is fused in it."""
    counts: tuple[str, ...] = ()
    """Attributes of `attn` with counts that are divided by the number of ranks."""
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
    """The sublayers of a layer: attention and MLP, or attention alone. A placement's factors depend on the number of
    layers, not of sublayers."""

    task: ClassVar[str]
    """The task that the family is trained for."""
    defaults: ClassVar[dict[str, Any]]
    """Defaults of the rest of an experiment with this family: dotted path -> value."""

    per_token: ClassVar[bool] = False
    """Whether an item is a token, with logits for each; otherwise it is a whole input, such as an image."""

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Any:
        """Return the initialised model, an `ablate.models.base.Model`. `classes`: vocabulary size or number of classes;
        `shape`: shape of one input. The model's module, which needs torch, is imported only here."""
        raise NotImplementedError

    def stack(self) -> Stack:
        """The properties of the model that placements, norm layers and initialisations depend on."""
        raise NotImplementedError

    def layer_parameters(self) -> int:
        """The number of weights in the matrices of the layers, which does not depend on vocabulary and placement."""
        raise NotImplementedError

    def sequence_length(self, shape: tuple[int, ...]) -> int:
        """Return how many tokens attend to one another in an input of `shape`."""
        raise NotImplementedError

    def tokens_per_item(self, shape: tuple[int, ...]) -> int:
        """Return how many tokens the layers process for one item."""
        return 1 if self.per_token else self.sequence_length(shape)

    def attention_flops(self, shape: tuple[int, ...]) -> int:
        """Return the FLOPs of the products of activations in the forward pass of one item: in each layer, 4 d for each
        pair of a token and a token that it attends to; a causal model has about half of all pairs."""
        each = (2 if self.stack().causal else 4) * self.hidden * self.sequence_length(shape)
        return self.layers * each * self.tokens_per_item(shape)

    def vocabulary(self, classes: int) -> int:
        """Return the number of output classes of the model for data with `classes` classes."""
        return classes

    def input_spec(self, state: Mapping[str, Tensor], length: int) -> tuple[int, tuple[int, ...]]:
        """Return (classes, shape of one input) as the weights of a trained model imply them. `length`: tokens of an
        input, used if the weights do not determine it."""
        raise NotImplementedError

    def tied_weights(self) -> dict[str, str]:
        """Return the tied weights: name -> name of the weight that it shares."""
        return {}

    def tensor_plan(self) -> TensorPlan | None:
        """Return how the ranks split the matrices of a layer; None if they cannot be split."""
        return None

    def narrowed(self, share: float) -> dict[str, Any]:
        """The fields of a narrower model with about `share` of `layer_parameters`: the width is multiplied by the root
        of `share` and the depth is kept, so that placements that depend on depth keep their layers. There are fewer
        heads of about the same width, in steps of four features (so that rotary pairs and groups still fit)."""
        hidden = self.hidden * share**0.5
        heads = max(1, round(hidden / (self.hidden // self.heads)))
        return {"hidden": heads * max(4, 4 * round(hidden / heads / 4)), "heads": heads}

    def validate(self) -> list[Problem]:  # type: ignore[override]
        """Return the problems with combinations of these fields."""
        if self.hidden % self.heads:
            return [Problem("heads", f"must divide hidden ({self.hidden})", self.heads)]
        if (weights := self.layer_parameters()) > MOST_WEIGHTS:
            size = f"{weights:,} weights, {4 * weights / 2**40:,.0f} TiB in float32"
            return [Problem("", f"the layers would have {size}. Accepted: at most {MOST_WEIGHTS:,}")]
        return []


models: Registry[ModelConfig] = Registry("model", ModelConfig, default="llama", keeps=False)
