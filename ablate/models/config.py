"""The interface of a model family's configuration, without torch. The interface of the model itself: `base`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ablate.config.base import Kind
from ablate.config.bounds import MOST_WEIGHTS
from ablate.config.errors import Problem
from ablate.config.registry import Registry
from ablate.norms import ASKS, Initialization, Placement, Stack, initializations, placements

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
    if TYPE_CHECKING:  # fields of a family; for a model by name the library defines them

        @property
        def hidden(self) -> int:
            """Width d of the hidden state."""

        @property
        def layers(self) -> int:
            """Number L of Transformer layers. 0: embedding, final norm and head alone."""

        @property
        def heads(self) -> int:
            """Number of attention heads; 0: no attention."""

    task: ClassVar[str]
    """The task that the family is trained for."""
    defaults: ClassVar[dict[str, Any]]
    """Defaults of the rest of an experiment with this family: dotted path -> value."""

    honours: ClassVar[frozenset[str]] = frozenset()
    """The requests of placements and norm layers that its models fulfil, of `ablate.norms.ASKS`. All others are
    refused."""
    mlp_matrices: ClassVar[int] = 2
    """Number of matrices [`hidden`, width of the MLP] in an MLP: 3 with a gate."""
    takes_head: ClassVar[bool] = False
    """Whether its models take a head of the task's own (`Model.attach_head`)."""
    of_library: ClassVar[bool] = False
    """Whether its models are a library's, by name: their norms and initial weights may stay the library's (`library`
    of norm, norm.layer and init)."""
    has_residuals: ClassVar[bool] = True
    """Whether its layers have residual connections, which a placement wires. Models without norm the summed inputs of
    their layers (`norm: summed_inputs`)."""
    keeps_shape: ClassVar[bool] = True
    """Whether each layer returns a hidden state of the shape of its input, as some measurements require."""
    scales: ClassVar[bool] = False
    """Whether its models can be scaled by a parametrisation: they name the role of each projection, and have places for
    the multipliers of the head's input and of the queries (`Model.scale_output`, `scale_queries`)."""
    unrolls: ClassVar[bool] = False
    """Whether its forward pass is a loop over tokens, which torch.compile writes out: `trainer.compile: auto` does not
    choose it then."""
    example: ClassVar[Mapping[str, Any]] = {}
    """Settings of a small model for `ablate check`, of a kind whose sizes have other names or no default."""
    masks_documents: ClassVar[bool] = False
    """Whether its models can mask documents (`Model.masks_documents`)."""
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
        """Return the number of weights in the matrices of the layers, which depends neither on vocabulary nor on
        placement. Here: of queries, keys, values and output, and of `mlp_matrices` in the MLP."""
        stack = self.stack()
        attention = 2 * (stack.heads + stack.kv_heads) * stack.head_dim
        return stack.depth * stack.hidden * (attention + self.mlp_matrices * stack.mlp)

    def sequence_length(self, shape: tuple[int, ...]) -> int:
        """Return how many tokens attend to one another in an input of `shape`. Here: of tokens, whose shape is
        (length,)."""
        (length,) = shape
        return length

    def tokens_per_item(self, shape: tuple[int, ...]) -> int:
        """Return how many tokens the layers process for one item."""
        return 1 if self.per_token else self.sequence_length(shape)

    def attention_flops(self, shape: tuple[int, ...]) -> int:
        """Return the FLOPs of the products of activations in the forward pass of one item: in each layer, 4 times the
        width of the heads for each pair of a token and a token that it attends to; a causal model has about half of all
        pairs."""
        stack = self.stack()
        each = (2 if stack.causal else 4) * stack.heads * stack.head_dim * self.sequence_length(shape)
        return self.layers * each * self.tokens_per_item(shape)

    def extra_training_flops(self, shape: tuple[int, ...]) -> int:
        """Return the FLOPs of one item that training needs beside the forward and backward pass. Here: none."""
        return 0

    def vocabulary(self, classes: int) -> int:
        """Return the number of output classes of the model for data with `classes` classes."""
        return classes

    def count_classes(self, state: Mapping[str, Tensor]) -> int:
        """Return the number of classes of the family's own head by the weights of a trained model."""
        raise NotImplementedError

    def input_shape(self, state: Mapping[str, Tensor], length: int) -> tuple[int, ...]:
        """Return the shape of one input as the weights of a trained model imply it. `length`: tokens of an input, used
        if the weights do not determine it. Here: of tokens."""
        return (length,)

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

    def resized(self, hidden: int) -> dict[str, Any]:
        """Return the fields of a model of the same shape whose width is `hidden`: a wider one has more heads, each as
        wide as here, and all other widths in proportion."""
        return {"hidden": hidden, "heads": self.heads * hidden // self.hidden}

    @property
    def title(self) -> str:
        """The name of the model in messages."""
        return self.kind

    def count_own_norms(self) -> tuple[int, int]:
        """Return how many norms its models compute in each layer, and outside of the layers, whatever the placement."""
        return 0, 0

    def validate_choices(self, norm: Placement, init: Initialization) -> list[Problem]:
        """Return the problems with a placement, norm layers and an initialisation for this model, other than the
        placement's requests. Here: a choice of `library`, which only models of a library have."""
        accepted = [kind for kind in models if models[kind].of_library]
        text = "library keeps what a library has built, and model {} is not from a library. Accepted with: {}"
        text = text.format(self.title, ", ".join(f"model.kind={kind}" for kind in accepted))
        layers = [norm, *(norm.at(index, self.layers) for index in range(self.layers))]
        choices = {"norm.kind": any(one.of_library for one in layers), "norm.layer": norm.layer.of_library}
        choices |= {"norm.qk": norm.qk.of_library, "init.kind": init.of_library}
        return [Problem(path, text, "library") for path, of_library in choices.items() if of_library]

    def validate(self) -> list[Problem]:  # type: ignore[override]
        """Return the problems with combinations of these fields."""
        if self.heads and self.hidden % self.heads and not getattr(self, "head_dim", None):
            return [Problem("heads", f"must divide hidden ({self.hidden})", self.heads)]
        if (weights := self.layer_parameters()) > MOST_WEIGHTS:
            size = f"{weights:,} weights, {4 * weights / 2**40:,.0f} TiB in float32"
            return [Problem("", f"the layers would have {size}. Accepted: at most {MOST_WEIGHTS:,}")]
        return []


def list_families() -> list[str]:
    """Return the kinds of model that have a model of their own; the others are one of these with other defaults, or a
    library's models by name."""
    classes = {models[kind] for kind in models}
    own = [kind for kind in models if not models[kind].of_library]
    return [kind for kind in own if classes.isdisjoint(models[kind].__mro__[1:])]


def validate_wiring(model: ModelConfig, norm: Placement, init: Initialization) -> list[Problem]:
    """Return the problems of how `model` is wired: a placement or an initialisation for residual connections needs a
    model that has them, one for summed inputs a model without."""
    placed = [norm, *(norm.at(index, model.layers) for index in range(model.layers))]
    if model.has_residuals:
        if not any(one.on_summed_inputs for one in placed):
            return []
        without = ", ".join(f"model.kind={kind}" for kind in models if not models[kind].has_residuals) or "none here"
        text = (
            "summed_inputs norms the layers of a model without residual connections, and model "
            f"{model.title} has them. Accepted with: {without}"
        )
        return [Problem("norm.kind", text, norm.kind)]
    problems = []
    if not (norm.on_summed_inputs or norm.of_library):
        text = (
            f"placement {norm.kind} is for layers with residual connections, which model {model.title} does not have. "
            "Accepted with it: summed_inputs, with any norm.layer"
        )
        problems.append(Problem("norm.kind", text, norm.kind))
    if init.by_residual:
        fitting = [kind for kind in initializations if not initializations[kind].by_residual]
        text = (
            f"differs from normal in matrices that write to a residual stream, and model {model.title} has none. "
            f"Accepted with it: {', '.join(fitting)}"
        )
        problems.append(Problem("init.kind", text, init.kind))
    return problems


def validate_asks(model: ModelConfig, norm: Placement, init: Initialization) -> list[Problem]:
    """Return the problems with requests of `norm` and `init` that the family of `model` does not honour."""
    stack, problems = model.stack(), []
    asks = norm.list_asks(stack)
    if init.embedding_multiplier(stack) != 1:
        asks["embedding_multiplier"] = f"init {init.kind}"
        if who := asks.get("embedding_scale"):
            text = f"multiplies the embedding, which {who} multiplies by a learnable factor already"
            problems.append(Problem("init.kind", text, init.kind))
    for ask, who in asks.items():
        if ask not in model.honours:
            text = f"{who} asks for {ASKS[ask]}, which model {model.title} does not offer"
            if who.startswith("placement"):
                honoured = [
                    name for name in placements if placements.parse(name).list_asks(stack).keys() <= model.honours
                ]
                text += f". Accepted with it: {', '.join(honoured)}"
            problems.append(Problem(_SETTINGS.get(ask, "norm.kind"), text, norm.kind if ask not in _SETTINGS else None))
    return problems


_SETTINGS = {
    "qk": "norm.qk",
    "no_final_norm": "norm.final_norm",
    "embedding_scale": "norm.layer",
    "embedding_multiplier": "init.kind",
}
"""Request -> the setting that makes it, if that is not the placement."""

models: Registry[ModelConfig] = Registry("model", ModelConfig, default="llama", keeps=False)
