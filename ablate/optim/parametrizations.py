"""The parametrisations, each with its formulas and its source, without torch. Their effect on a model: `scaling`.

In formulas m is the width of the model over that of the base size, and k its depth over the base's. At the base size m
and k are 1, and so is every factor: nothing is changed, and the numbers are those of `standard`, to the bit. A matrix
counts as hidden if both of its sides grow with the width: all projections of the layers. The embedding, the head, norms
and biases have one side or none that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from ablate.config.base import Config, Kind
from ablate.config.bounds import MOST_LAYERS, MOST_WIDTH
from ablate.config.registry import Registry
from ablate.norms import Stack


@dataclass(frozen=True)
class Factors:
    """Factors of the settings of an optimizer for some parameters."""

    lr: float = 1.0
    weight_decay: float = 1.0
    """The decay of an update is the product of learning rate and weight decay."""
    eps: float = 1.0
    """Factor of Adam's eps, which is added to the root of the second moment."""
    orthogonal_lr: float = 1.0
    """Replaces `lr` for an update whose singular values are all 1, whatever the shape (Muon)."""
    orthogonal_rms_lr: float = 1.0
    """The same if the update is scaled to a root mean square that depends on no shape."""


@dataclass(frozen=True)
class Multipliers:
    """The multipliers of a parametrisation for a model of one size, and for its optimizer."""

    hidden_init: float = 1.0
    """Multiplier of the initial weights of the projections of the layers."""
    gate_init: float = 1.0
    """The same of gates with one output for each head."""
    readout_init: float = 1.0
    """The same of matrices from the width to few numbers, of norms and placements."""
    output: float = 1.0
    """Multiplier of the input of the head, and so of the logits."""
    queries: float = 1.0
    """Multiplier of the queries, and so of the attention's logits."""
    residual: float = 1.0
    """Multiplier of each branch that is added to the residual stream."""
    inside: Mapping[str, Factors] = field(default_factory=dict)
    """Role of a parameter (`ablate.optim.groups`) inside the layers -> its factors; those that are not named have
    none."""
    outside: Mapping[str, Factors] = field(default_factory=dict)
    """The same of the embedding, the final norm and the head."""
    stream: Mapping[str, Factors] = field(default_factory=dict)
    """The same of norms inside the layers that the residual stream itself passes through."""

    def find_factors(self, role: str, is_inside: bool, on_stream: bool = False) -> Factors:
        """Return the factors of the parameters of a role, inside or outside of the layers, or `on_stream`."""
        factors = self.stream if on_stream else self.inside if is_inside else self.outside
        return factors.get(role, Factors())


class BaseSize(Config):
    """The size at which the settings were found; all multipliers are 1 there."""

    hidden: int = Field(64, gt=0, le=MOST_WIDTH)
    """Width d of the hidden state."""
    layers: int = Field(4, gt=0, le=MOST_LAYERS)
    """Number L of layers."""
    head_dim: int | None = Field(None, gt=0, le=MOST_WIDTH)
    """Width of an attention head. None: that of the model, so that a wider model has more heads."""


class Parametrization(Kind):
    """A parametrisation."""

    kind: str
    by_depth: ClassVar[bool] = False
    """Whether anything depends on the depth."""

    def list_multipliers(self, stack: Stack) -> Multipliers:
        """Return the multipliers for a model of this size."""
        return Multipliers()


parametrizations: Registry[Parametrization] = Registry("parametrization", Parametrization, default="standard")


@parametrizations.register
class Standard(Parametrization):
    """The usual one: `init` and the optimizer's settings as they stand, at every size."""

    kind: Literal["standard"] = "standard"


class Scaled(Parametrization):
    """The common base of those that scale with the size."""

    base: BaseSize = BaseSize()
    """The size at which the settings were found."""

    def width_ratio(self, stack: Stack) -> float:
        """Return m, the width over the base's."""
        return stack.hidden / self.base.hidden

    def depth_ratio(self, stack: Stack) -> float:
        """Return k, the depth over the base's."""
        return stack.depth / self.base.layers

    def describe_scale(self, stack: Stack) -> str:
        """Return 'mup from base hidden 32 (m = 2)', with the depth where anything depends on it."""
        base, ratios = f"hidden {self.base.hidden}", f"m = {self.width_ratio(stack):g}"
        if self.by_depth:
            base, ratios = f"{base}, layers {self.base.layers}", f"{ratios}, k = {self.depth_ratio(stack):g}"
        return f"{self.kind} from base {base} ({ratios})"

    def _scale_width(self, stack: Stack, residual: float, lr: float, eps: float, stream: float) -> Multipliers:
        """Return the multipliers by the width, and by the depth those that are given: of branches, inside the layers of
        learning rates and of Adam's eps, and of the learning rate of norms on the stream."""
        m = self.width_ratio(stack)
        head = self.base.head_dim or stack.head_dim
        vector = Factors(lr, 1.0, eps / m)
        hidden = Factors(lr / m, m, eps / m, orthogonal_lr=lr, orthogonal_rms_lr=lr / m**0.5)
        queries = (head / stack.head_dim) ** 0.5
        # of heads over the base's there are m * queries^2: m if each is as wide as there, where the matrix of their
        # gates is a hidden one, and 1 if there are as many, where its outputs are of a constant number as the head's
        # are
        gates = Factors(lr / m, m, eps / (m * queries**2))
        outer = Factors(eps=1 / m)
        readouts = Factors(lr / m, m, eps / m)
        return Multipliers(
            hidden_init=m**-0.5,
            gate_init=m**-0.5 * min(1.0, queries),
            readout_init=1 / m,
            output=1 / m,
            queries=queries,
            residual=residual,
            inside=_drop_ones(
                {"matrices": hidden, "gates": gates, "readouts": readouts, "biases": vector, "norms": vector}
            ),
            outside=_drop_ones(
                dict.fromkeys(("embedding", "head", "biases", "norms"), outer) | {"readouts": Factors(1 / m, m, 1 / m)}
            ),
            stream=_drop_ones({"norms": Factors(stream, 1.0, 1 / m), "readouts": Factors(stream / m, m, 1 / m)}),
        )


def _drop_ones(roles: Mapping[str, Factors]) -> dict[str, Factors]:
    """Return `roles` without factors of 1, so that the base size has no multipliers at all."""
    return {role: factors for role, factors in roles.items() if factors != Factors()}


@parametrizations.register
class MuP(Scaled):
    """Maximal-update parametrisation, in width: a neuron's summed input and its change in an update stay of the same
    size as the model grows wider.

    Hidden matrices: initial standard deviation times 1/sqrt(m), Adam's learning rate times 1/m, and weight decay times
    m, which leaves the decay of an update as it is. Head: its input times 1/m; initial weights and learning rate stay.
    Attention: its logits are q k / d_head times sqrt(d_head of the base); a gate for each head is hidden as its number
    of heads grows with m, and where this stays its initial weights are times 1/m. Other matrices from the width to few
    numbers (readouts): initial weights and learning rate times 1/m, weight decay times m. Adam's eps times 1/m, as
    gradients fall by 1/m. Embedding, norms and biases: as they are. Muon makes an update of which all singular values
    are equal, and its learning rate stays; where the update is scaled to a root mean square that no shape changes
    (match_rms_adamw), they grow with sqrt(m), and the rate is times 1/sqrt(m).

    Yang et al. 2022, arXiv 2203.03466, table 8; eps: Everett et al. 2024, arXiv 2407.05872, and Dey et al. 2025, arXiv
    2505.01618, table 1.
    """

    kind: Literal["mup"] = "mup"

    def list_multipliers(self, stack: Stack) -> Multipliers:
        return self._scale_width(stack, residual=1.0, lr=1.0, eps=1.0, stream=1.0)


@parametrizations.register
class CompleteP(Scaled):
    """CompleteP (Dey et al. 2025, arXiv 2505.01618, table 1): `mup` in width, and in depth each branch that is added to
    the residual stream times k^-alpha.

    Inside the layers the learning rates are times k^(alpha - 1), which is 1 for alpha = 1, and eps times k^-alpha. The
    multiplier stands on the whole branch, behind a norm of the sublayer's output, which would undo it otherwise: x +
    k^-alpha f(N(x)) for Pre-LN, N(x + k^-alpha f(x)) for Post-LN, x + k^-alpha N(f(N(x))) for Sandwich.

    The papers are about Pre-LN, where nothing is learned on the residual stream. A norm that the stream itself passes
    through, as in Post-LN, has the learning rate times 1/k, whatever alpha is: what all layers learn there adds up.
    """

    kind: Literal["complete_p"] = "complete_p"
    alpha: float = Field(1.0, ge=0.5, le=1)
    """Exponent of the depth. 1: CompleteP; 0.5: depth-muP (Yang et al. 2023, arXiv 2310.02244)."""
    by_depth = True

    def list_multipliers(self, stack: Stack) -> Multipliers:
        k = self.depth_ratio(stack)
        branch = k**-self.alpha
        return self._scale_width(stack, residual=branch, lr=k ** (self.alpha - 1), eps=branch, stream=1 / k)
