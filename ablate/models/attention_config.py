"""Options of the attention, beside any placement: `model.attention`. Their modules: `ablate.models.attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field

from ablate.config.base import Config
from ablate.config.errors import Problem
from ablate.models.config import ModelConfig
from ablate.norms import Initialization, Placement, Stack


class AttentionConfig(Config):
    """What is inside of the attention. By default nothing is added."""

    gate: Literal["none", "elementwise", "headwise"] = "none"
    """A gate sigmoid(W x) on the output, for each feature of it or one for each head of the queries. x is what enters
    the attention. The gate is behind a placement's norm of the output, which would undo it, and in front of the output
    projection. W starts as `init` has it, so that gates start near 1/2. Qiu et al. 2025, arXiv 2505.06708."""
    sink: Literal["none", "learned", "one"] = "none"
    """A term in the denominator of the softmax, so that a head may attend to nothing. It is exp(z) with one learned z
    for each head of the queries (gpt-oss, arXiv 2508.10925), from 0 as in DeepSeek-V4, or the number one (softmax off
    by one; Miller 2023)."""
    value_residual: Literal["none", "fixed", "learned"] = "none"
    """The values of layer 1 in all later ones: a V_1 + b V_l. a = b = 1/2, or both learned in each layer, from
    1/2. Zhou et al. 2024, arXiv 2410.17897."""
    temperature: bool = False
    """Cosine attention: logits exp(min(t, ln 100)) cos(q, k). There is one learned t for each head of the queries, from
    ln 10, and no norm.qk beside it. Liu et al. 2021, arXiv 2111.09883."""
    qk_clip: float | None = Field(None, gt=0)
    """QK-clip: the largest logit q k / sqrt(head width) that a head may have in training, 100 in the paper. After an
    update, the weights and biases of queries and keys of each head whose largest logit S in the batch was above it are
    scaled by sqrt(qk_clip / S) each. Where several heads of queries share keys, the keys are scaled by the largest S of
    these, and each head's queries by what its own then still needs, which is at most 1. Frozen weights, and what the
    optimizer keeps, stay. No norm of queries beside it. None: nothing is clipped. Kimi Team 2025, arXiv 2507.20534."""

    @classmethod
    def list_accepted(cls, name: str) -> tuple[str, ...]:
        """Return the values that an option accepts, in words."""
        annotation: Any = cls.model_fields[name].annotation
        own = {bool: ("false", "true"), float | None: ("null", "a number above 0")}
        return own[annotation] if annotation in own else get_args(annotation)

    @property
    def shares_values(self) -> bool:
        """Whether layers use the values of the first."""
        return self.value_residual != "none"

    @property
    def after_training(self) -> AttentionConfig:
        """The options of a model that is no longer trained: all that change what it computes."""
        return self.model_copy(update={"qk_clip": None})

    def count_gates(self, stack: Stack) -> int:
        """Return the number of gates of a layer, each of which has one weight for each feature of the hidden state."""
        return {"none": 0, "headwise": stack.heads, "elementwise": stack.heads * stack.head_dim}[self.gate]

    def find_set(self) -> dict[str, object]:
        """Return the options that add something: name -> value."""
        return {name: value for name, value in self if value != type(self).model_fields[name].default}

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        """Return the problems of the options in a model."""
        if not stack.depth:
            text = "is inside of the attention, and a model without layers (model.layers=0) has none"
            return [Problem(name, text, value) for name, value in self.find_set().items()]
        if self.shares_values and stack.depth == 1:
            text = "adds the values of layer 1 to those of later layers, and there are none (model.layers=1)"
            return [Problem("value_residual", text, self.value_residual)]
        return []


class WithAttention(ModelConfig):
    """A family whose attention has these options: it has a field `attention`, and its model does what that says."""

    if TYPE_CHECKING:

        @property
        def attention(self) -> AttentionConfig:
            """Options of the attention."""

    def layer_parameters(self) -> int:
        stack = self.stack()
        return super().layer_parameters() + stack.depth * stack.hidden * self.attention.count_gates(stack)

    def attention_flops(self, shape: tuple[int, ...]) -> int:
        """As of every model; a sink is one more key, for causal attention also one more query, and a learned one also
        one more feature of each (`ablate.models.attention.Sink`)."""
        if self.attention.sink == "none":
            return super().attention_flops(shape)
        stack, length = self.stack(), self.sequence_length(shape)
        width = stack.heads * (stack.head_dim + (self.attention.sink == "learned"))
        pairs = (length + 1) ** 2 / 2 if stack.causal else length * (length + 1)
        return round(stack.depth * 4 * width * pairs * self.tokens_per_item(shape) / length)

    def extra_training_flops(self, shape: tuple[int, ...]) -> int:
        """QK-clip computes the logits of all pairs of tokens once more, of which a causal model uses half."""
        if self.attention.qk_clip is None:
            return 0
        stack, length = self.stack(), self.sequence_length(shape)
        return stack.depth * 2 * stack.heads * stack.head_dim * length * self.tokens_per_item(shape)

    def validate(self) -> list[Problem]:  # type: ignore[override]
        problems = super().validate()
        return problems or [problem.within("attention") for problem in self.attention.validate(self.stack())]

    def validate_choices(self, norm: Placement, init: Initialization) -> list[Problem]:
        problems = super().validate_choices(norm, init)
        layers = (norm.at(i, self.layers) for i in range(self.layers))
        placed = next((one for one in layers if one.qkv_norm or one.on_sphere), None)
        norming = [f"norm.qk={norm.qk.kind}"] * norm.has_qk_norm + ([f"placement {placed.kind}"] if placed else [])
        texts = {
            "temperature": "norms queries and keys itself, and {} does so too. Remove one of the two",
            "qk_clip": "scales the weights of queries and keys, and {} norms what these give, so that it would change "
            "nothing. Remove one of the two",
        }
        for name, text in texts.items():
            if value := getattr(self.attention, name):
                also = ["model.attention.temperature=true"] * (name == "qk_clip" and self.attention.temperature)
                problems += [Problem(f"model.attention.{name}", text.format(who), value) for who in norming + also]
        return problems
