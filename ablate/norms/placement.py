"""The base class of placements: the factory of a layer's residual wiring, and what else a placement may require of a
model.

A block of either model family is two lines, whatever the placement,

    x = self.attn_residual(x, self.attn)
    x = self.mlp_residual(x, self.mlp)

and a placement builds those two modules: `wire(site)`. To add one, write one class in `placements.py` (or in a file of
your own): a `kind`, its fields, its rule, and `residual`, which wires one sublayer. In rules, `N` is the norm layer
(`norm.layer`), `f` a sublayer (attention, then MLP), `L` the number of layers and `l` a layer's index counted from 1.

What travels between layers is one stream [batch, tokens, d], unless a placement names another `carrier`: then it also
says how that state is opened, closed and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn

from ablate.config.base import Kind
from ablate.config.errors import AblateError, Problem
from ablate.config.lazy import pytree, torch
from ablate.config.registry import Registry
from ablate.norms.layers import NoNorm, NormLayer, RMSNorm, norm_layers

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Stack:
    """The properties of a model that its other configurations depend on."""

    depth: int
    """Number L of layers."""
    hidden: int
    """Width d of the hidden state."""
    mlp: int
    """Width of the MLP; 0 if layers have none."""
    heads: int
    """Number of heads of the queries."""
    kv_heads: int
    """Number of heads of the keys and of the values."""
    head_dim: int
    """Width of one attention head."""
    causal: bool
    """Whether a token must not attend to later tokens."""
    token_embedding: bool
    """Whether the input embedding is a matrix of its own, not shared with the head."""
    summed_inputs: tuple[int, ...] = ()
    """Widths of the summed inputs W x that are normed in a model without residual connections."""


@dataclass(frozen=True)
class Site:
    """A layer's position, and the parts that its wiring is built from."""

    index: int
    """Index of the layer, from 0."""
    depth: int
    """Number of layers."""
    dim: int
    """Width of the hidden state."""
    new_norm: Callable[..., nn.Module]
    """Builds one norm layer on the hidden state, called with the place of the norm and the start of its gain."""
    drop: Callable[[], nn.Module] = lambda: torch.nn.Identity()
    """Builds the stochastic depth of a branch that is added to the residual stream."""
    place: str = "attn"
    """The sublayer that is wired, attn or mlp; final: what follows the last one."""
    sublayers: int = 2
    """Number of sublayers of a layer."""

    @property
    def sublayer(self) -> int:
        """Index of the sublayer in the whole stack, from 0; their number at the end of the stack."""
        return self.sublayers * self.index + (self.place == "mlp")

    @property
    def mlp(self) -> Site:
        """The site of the MLP of the same layer."""
        return replace(self, place="mlp")

    def norm(self, start: float = 1.0) -> nn.Module:
        """Return a new norm layer on the hidden state, with gains of `start`."""
        return self.new_norm(self.place, start)


ASKS = {
    "embedding_norm": "a norm after the embedding",
    "inner_norm": "norms before the output projections",
    "qkv_norm": "norms on the queries, keys and values of each head",
    "qk": "norms on queries and keys (norm.qk)",
    "no_final_norm": "a head without a norm before it (norm.final_norm=false)",
    "gains": "an initialisation by the role of a projection",
    "calibration": "values that are set from the first batch",
    "embedding_scale": "a learnable factor of the embedding",
    "embedding_multiplier": "a constant factor of the embedding",
    "carrier": "another state between its layers than one stream",
    "sphere": "weights, queries and keys of length 1, and learned factors in the place of norms",
}
"""Requests that a placement, a norm layer or an initialisation can make of a model besides the wiring of its residual
connections -> in words."""


STREAM = "one stream"


def refuse_state(state: Any, kind: str) -> NoReturn:
    """Raise AblateError for what a placement of this kind hands on where one tensor is taken."""
    raise AblateError(
        f"Placement {kind} hands on a {type(state).__name__}, where one tensor is taken. Define its carrier, open, "
        "close and show (docs/reference/plugins.md)."
    )


class Placement(Kind):
    """A placement. These fields are common to all placements and keep their values when `norm.kind` changes."""

    kind: str
    layer: Annotated[NormLayer, norm_layers] = RMSNorm()
    """The norm layer. Default: the model's own, RMSNorm for LLaMA and LayerNorm for ViT."""
    final_norm: bool = True
    """Whether one norm closes the stack before the head. On for every placement, as in the papers' experiments;
    Post-LN and DeepNorm then end with two norms in a row (DeepNet's reference code has none). nGPT has no such norm."""
    qk: Annotated[NormLayer, norm_layers] = NoNorm()
    """QK-norm: the norm layer on queries and keys, in front of the rotary embedding. none: there is none."""
    qk_over: Literal["head", "width"] = "head"
    """The features that the QK-norm is over: those of each head, with gains that all heads share (Qwen3, Gemma 3), or
    all queries, and all keys, of a token (OLMo 2)."""

    rule: ClassVar[str] = ""
    """The sublayer rule in one line, as `ablate list placements` prints it."""
    source: ClassVar[str] = ""
    """The paper that the rule is from."""
    diagram: ClassVar[str] = ""
    """A text diagram of one sublayer, or of one layer if attention and MLP differ."""
    initialisation: ClassVar[str] = "set by `init`"
    """The initial weights, in words."""
    caveats: ClassVar[str] = ""
    """Caveats of a comparison with others."""
    embedding_norm: ClassVar[bool] = False
    """Whether a norm follows the embedding."""
    of_library: ClassVar[bool] = False
    """Whether it keeps the placement that a library's model has built itself."""
    on_summed_inputs: ClassVar[bool] = False
    """Whether the norms are on the summed inputs of each layer, of a model without residual connections."""
    inner_norm: ClassVar[bool] = False
    """Whether a norm precedes the output projections of attention and MLP."""
    qkv_norm: ClassVar[bool] = False
    """Whether norms follow the query, key and value projections, on each head."""
    on_sphere: ClassVar[bool] = False
    """Whether hidden states, weights, queries and keys have length 1, with learned factors in the place of norms: of
    queries and keys, inside of the MLP and of the logits."""
    starts_gains: ClassVar[bool] = False
    """Whether some gains of its norms start at another value than 1."""
    ends_with: ClassVar[Literal["sum", "norm", ""]] = ""
    """What each sublayer ends with, for a placement that modifies this one: the sum x + ..., or the norm of a sum that
    `residual` builds as PostResidual. '': neither, so that none of them takes it."""

    carrier: ClassVar[str] = STREAM
    """What travels between layers, in words. One stream is [batch, tokens, d]; any other state is opened, closed and
    shown by the methods below."""

    def open(self, site: Site) -> nn.Module | None:
        """Return the module that makes the first state from the embedding [batch, tokens, d]; None: it is the state."""
        return None

    def close(self, site: Site) -> nn.Module | None:
        """Return the module that makes the input of the final norm, [batch, tokens, d], of the last state; None: the
        state is that. It has no norms but those that `closing_norms` counts."""
        return None

    closing_norms: ClassVar[int] = 0
    """Number of norms in what `close` returns."""
    spares_layers: ClassVar[bool] = True
    """Whether a layer can be left out by handing on its input in its place. If not, its attention and MLP return 0
    instead, so that it still hands on what the next ones take."""

    def show(self, state: Any) -> Tensor:
        """Return what diagnostics take for the hidden state, [batch, tokens, d], of what travels between layers."""
        shown: Tensor = state
        return shown

    def streams(self, state: Any) -> Tensor:
        """Return the streams [batch, tokens, n, d] of what travels between layers, whose effective rank diagnostics
        measure. Default: the state itself, or all tensors of a tuple side by side."""
        if isinstance(state, torch.Tensor):
            return state
        return torch.stack([part for part in pytree.tree_leaves(state) if isinstance(part, torch.Tensor)], -2)

    def after_update(self, model: nn.Module, updates: int) -> None:
        """Change the model after so many updates, and before the first: weights that are normalised, factors that
        follow the training. Default: nothing."""

    def residual(self, site: Site) -> nn.Module:
        """Return the wiring of one sublayer: a module called with (x, f, *arguments of f)."""
        raise NotImplementedError

    def reference(
        self,
        x: Tensor,
        attn: Callable[[Tensor], Tensor],
        mlp: Callable[[Tensor], Tensor],
        norms: Sequence[Callable[[Tensor], Tensor]],
        factors: Sequence[Tensor],
        layer: int,
        depth: int,
    ) -> Tensor:
        """Return the formula of one layer written out, of x [batch, tokens, d]. Optional: `ablate check` compares the
        wiring with it. `norms` and the learned `factors` are in the order in which the wiring builds them, those of the
        attention first; `layer` is counted from 1, to `depth`."""
        raise NotImplementedError

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        """Return the wiring of a layer's attention and MLP. A placement that connects the two overrides this; the
        second receives what the first returns, which may be more than one tensor. `site` is that of the attention,
        `site.mlp` that of the MLP."""
        wirings = self.residual(site), self.residual(site.mlp)
        if self.carrier == STREAM and type(self).__module__.partition(".")[0] != "ablate":
            for wiring in wirings:
                wiring.register_forward_hook(self._check_state)
        return wirings

    def _check_state(self, wiring: nn.Module, given: Any, state: Any) -> None:
        """Raise AblateError for a state of several tensors: a hook, whose look at the type leaves nothing in a compiled
        program."""
        if isinstance(state, (tuple, list, dict)):
            refuse_state(state, self.kind)

    def wire_attn(self, site: Site) -> nn.Module:
        """Return the wiring of a layer of attention alone. A placement whose attention passes more than one tensor to
        the MLP overrides this."""
        return self.wire(site)[0]

    def at(self, index: int, depth: int) -> Placement:
        """Return the placement of one layer: this one, unless it depends on the depth. With `depth` 0 it is called for
        the first layer, whose embedding norm a model without layers has too."""
        return self

    def list_parts(self) -> list[Placement]:
        """Return this placement and all that it is made of."""
        return [self]

    def caution(self, depth: int, updates: int) -> str:
        """Return what may be a mistake in these settings of a model of `depth` layers that is trained for so many
        updates; '' for nothing."""
        return ""

    def gains(self, depth: int) -> dict[str, float]:
        """Return the Xavier gain by projection (q, k, v, o, gate, up, down) if the placement has its own
        initialisation."""
        return {}

    def scales_by_depth(self) -> bool:
        """Return whether it scales the residual, branches or initial weights by the number of layers, which a
        parametrisation by the depth does too. Here: the initial weights."""
        return self.gains(8) != self.gains(16)

    def prepare(self, model: nn.Module, first_inputs: Callable[[], Tensor]) -> None:
        """Set parameters that are initialised from the inputs of the first batch, before the first update. Default:
        none."""

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        """Return the problems with the placement's own fields in a model."""
        return []

    @property
    def has_qk_norm(self) -> bool:
        """Whether queries and keys are normed by `qk`."""
        return not isinstance(self.qk, NoNorm)

    def list_asks(self, stack: Stack) -> dict[str, str]:
        """Return the requests to a model: a key of `ASKS` -> the placement or norm layer that asks for it."""
        layers = [self.at(index, stack.depth) for index in range(max(1, stack.depth))]
        asks = {
            ask: f"placement {placed.kind}"
            for placed in reversed(layers)
            for ask, is_asked in placed._list_own_asks(stack.depth).items()
            if is_asked and (ask != "embedding_norm" or placed is layers[0])
        }
        shared = {
            "qk": (self.has_qk_norm, f"norm.qk={self.qk.kind}"),
            "no_final_norm": (not self.final_norm, "norm.final_norm"),
            "embedding_scale": (self.layer.scales_embedding and stack.causal, f"norm layer {self.layer.kind}"),
        }
        return asks | {ask: who for ask, (is_asked, who) in shared.items() if is_asked}

    def _list_own_asks(self, depth: int) -> dict[str, bool]:
        return {
            "embedding_norm": self.embedding_norm,
            "inner_norm": self.inner_norm,
            "qkv_norm": self.qkv_norm,
            "gains": bool(self.gains(max(1, depth))),
            "calibration": type(self).prepare is not Placement.prepare,
            "carrier": self.carrier != STREAM,
            "sphere": self.on_sphere,
        }

    def validate_layer(self, stack: Stack) -> list[Problem]:
        """Return the problems with the norm layers in a model with this placement."""
        layers = [self.at(index, stack.depth) for index in range(stack.depth)]
        width = stack.heads * stack.head_dim  # of the attention's output
        widths = {stack.hidden}
        widths |= {inner for placed in layers if placed.inner_norm for inner in (width, stack.mlp) if inner}
        widths |= {stack.head_dim for placed in layers if placed.qkv_norm}
        qk_widths = {stack.head_dim} if self.qk_over == "head" else {width, stack.kv_heads * stack.head_dim}
        problems = [problem.within("layer") for problem in find_problems(self.layer, widths, stack.causal)]
        problems += [problem.within("qk") for problem in find_problems(self.qk, qk_widths, stack.causal)]
        if self.layer.no_gain is None and (placed := next((one for one in layers if one.starts_gains), None)):
            text = f"placement {placed.kind} sets the start of gains, and norm layer {self.layer.kind} has none to set"
            problems.append(Problem("layer", text, self.layer.kind))
        if self.has_qk_norm and (placed := next((one for one in layers if one.qkv_norm), None)):
            text = f"placement {placed.kind} norms queries and keys itself. Accepted with it: none"
            problems.append(Problem("qk", text, self.qk.kind))
        return problems


def find_problems(layer: NormLayer, widths: Collection[int], causal: bool) -> list[Problem]:
    """Return the problems with `layer` on any of these numbers of features, each once."""
    problems = [problem for dim in sorted(widths) for problem in layer.validate(dim, causal)]
    return list({(problem.path, problem.message): problem for problem in problems}.values())


placements: Registry[Placement] = Registry("placement", Placement, default="pre")
