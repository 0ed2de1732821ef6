"""The placements whose layers hand on more than one stream: several streams, a pair of them, or all earlier outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ablate.config.errors import Problem
from ablate.config.lazy import postpone_imports
from ablate.norms.placement import Placement, Site, Stack, placements

if TYPE_CHECKING:
    from torch import Tensor, nn

with postpone_imports():
    from ablate.norms import stream_residuals

MOST_STREAMS = 64


class Streams(Placement):
    """The common base of those with several streams, [batch, tokens, n, d], which begin as copies of the embedding."""

    n: int = Field(4, ge=1, le=MOST_STREAMS)
    """Number of streams. 1 is worse than Pre-LN in the paper of hyper-connections."""

    @property
    def carrier(self) -> str:  # type: ignore[override]
        return f"{self.n} streams"

    def caution(self, depth: int, updates: int) -> str:
        worse = f"{self.kind}: one stream (n=1) was worse than Pre-LN in the paper of hyper-connections."
        return worse if self.n == 1 else ""

    def open(self, site: Site) -> nn.Module | None:
        return stream_residuals.Apply(lambda x: x.unsqueeze(-2).expand(*x.shape[:-1], self.n, -1))

    def show(self, state: Any) -> Tensor:
        mean: Tensor = state.mean(-2)
        return mean


@placements.register
class HyperConnections(Streams):
    """Hyper-connections: n streams, of which each sublayer reads a mixture, adds its output to each of them, and mixes
    them. They begin as Pre-LN."""

    kind: Literal["hc"] = "hc"
    dynamic: bool = True
    """Whether the mixture also depends on the token, from 0. false: learned numbers alone (static)."""
    tanh: bool = True
    """Whether the part that depends on the token passes through a tanh."""
    rule = "H <- b u^T + A_r^T H, u = f(N(A_m^T H)), H [n, d]; A, b learned, each + s tanh(N(H) W) by token"
    source = "Zhu et al. 2024, arXiv 2409.19606"
    diagram = "H ─┬─ A_m ─ N ─ f ─ * b ─ + ─►\n   └───────── A_r ────────┘"
    initialisation = (
        "set by `init`; A_m = e_(k mod n) in sublayer k, A_r = 1, b = 1, s = 0.01, W = 0: Pre-LN in each stream, where "
        "the final norm ignores that the streams end as their sum"
    )
    caveats = (
        "Needs n times the memory between layers, and its time is that of moving it. The streams end as their sum. "
        "Left out: the paper also rescales the start of the output projections by sqrt(n), by which DepthBench's code "
        "divides it."
    )

    def residual(self, site: Site) -> nn.Module:
        return stream_residuals.HyperConnection(site, self.n, self.dynamic, self.tanh)

    def close(self, site: Site) -> nn.Module | None:
        return stream_residuals.Apply(lambda streams: streams.sum(-2))


@placements.register
class ManifoldHyperConnections(Streams):
    """mHC: hyper-connections whose mixing matrix is doubly stochastic, by Sinkhorn's iteration, so that the gain
    of the composed map of all layers stays small. Computed in float32 under every precision."""

    kind: Literal["mhc"] = "mhc"
    iterations: int = Field(20, ge=1, le=1000)
    """Of Sinkhorn's: each scales the rows, then the columns."""
    read_start: float = 8.0
    """Start of the logits by which a sublayer reads its stream, k mod n; minus this for the others."""
    mix_start: float = 4.0
    """Start of the logits on the diagonal of the mixing matrix; minus this beside it. With 8 its weights beside the
    diagonal are 1e-6 and hardly learn."""
    write_start: float = 0.0
    """Start of the logits by which the output is added to the streams: 2 sigmoid of it."""
    scale_start: float = 0.01
    """Start of the factors on what depends on the token."""
    projection_std: float = Field(0.0, ge=0)
    """Initial standard deviation of the projections of the token; 0: what depends on it begins at 0."""
    ends_as: Literal["mean", "read"] = "mean"
    """What the last streams become: their mean, or one more learned reading (DeepSeek-V4)."""
    rule = (
        "H <- p u^T + C^T H, u = f(N(r H)); r = sig z_r, p = 2 sig z_p, C = Sinkhorn(exp z_C), z = a Phi v / rms(v) + "
        "b, v = vec H"
    )
    source = "mHC 2025, arXiv 2512.24880; DeepSeek-V4"
    diagram = "H ─┬─ r ─ N ─ f ─ * p ─ + ─►\n   └───────── C ────────┘"
    initialisation = "set by `init`; Phi = 0, a = 0.01: nearly Pre-LN, where a norm ignores the scale of its input"
    caveats = (
        "The start that its authors trained with is not published; this one is DepthBench's last; its parts are "
        "fields. Its logits lie where sigmoid and softmax are flat, and learn slowly; the authors' Adam has an eps of "
        "1e-20. Mixing contracts the streams to their mean with depth."
    )

    def residual(self, site: Site) -> nn.Module:
        starts = (self.read_start, self.write_start, self.mix_start)
        return stream_residuals.ManifoldHyperConnection(
            site, self.n, self.iterations, starts, self.scale_start, self.projection_std
        )

    def close(self, site: Site) -> nn.Module | None:
        if self.ends_as == "mean":
            return stream_residuals.Apply(self.show)
        return stream_residuals.LearnedRead(site, self.n, self.scale_start, self.projection_std)


@placements.register
class SiameseNorm(Placement):
    """SiameseNorm: two streams with one sublayer between them: X is normed as in Post-LN, Y grows as in Pre-LN."""

    kind: Literal["siamese"] = "siamese"
    variant: Literal["post_pre", "hybrid_pre"] = "post_pre"
    """post_pre: as written in the rule, both sublayers. hybrid_pre: attention reads c1 X + N(Y), with norms on queries,
    keys and values and without N_in, and its X is not normed before."""
    first: Literal["same", "pre"] = "same"
    """The first layer of hybrid_pre. pre: as HybridNorm*, attention reads N(X) + N(Y), its MLP leaves X unnormed."""
    rule = "X <- N1(X); u = f(N_in(X + N2(Y))); X <- X + u / sqrt(2l), Y <- Y + u; ends as N_a(X) + N_b(Y)"
    source = "SiameseNorm 2026, arXiv 2602.08064"
    diagram = (
        "X ─ N1 ─┬────────────────────── + ─►\n"
        "        └─ + ─ N_in ─ f ─┬─ / c ┘\n"
        "Y ─┬─ N2 ──┘             │\n"
        "   └──────────────────── + ─────►"
    )
    caveats = (
        "Six norms a layer and three final ones; the state is twice as large. Its authors train language models in "
        "both variants; where they set the rule of the first layer was not read."
    )
    closing_norms = 2

    carrier = "a pair of streams"

    @property
    def qkv_norm(self) -> bool:  # type: ignore[override]
        return self.variant == "hybrid_pre"

    def open(self, site: Site) -> nn.Module | None:
        return stream_residuals.Apply(stream_residuals.double)

    def close(self, site: Site) -> nn.Module | None:
        return stream_residuals.SiameseEnd(site)

    def show(self, state: Any) -> Tensor:
        total: Tensor = state[0] + state[1]
        return total

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        if self.variant == "post_pre":
            return stream_residuals.SiameseResidual(site), stream_residuals.SiameseResidual(site.mlp)
        is_first = self.first == "pre" and site.index == 0
        attn = stream_residuals.SiameseAttention(site, normed=is_first)
        return attn, stream_residuals.SiameseResidual(site.mlp, keeps_x=is_first)

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        if self.first == "same" or self.variant == "hybrid_pre":
            return []
        return [Problem("first", "is a rule of variant=hybrid_pre", self.first)]


@placements.register
class AttentionResiduals(Placement):
    """Attention residuals: each sublayer reads a softmax average over the embedding, the sums of all finished blocks
    and that of its own, by a learned query. There is no other residual."""

    kind: Literal["attnres"] = "attnres"
    block: int = Field(2, ge=1)
    """Sublayers whose outputs are summed into one source: 2 is a layer, 4 is that of the paper's ablations, 1 that each
    is one of its own (full)."""
    rule = "x = sum_i w_i v_i, w = softmax_i(q . v_i / rms(v_i) * g); the block's sum += f(N(x))"
    source = "AttnRes 2026, arXiv 2603.15031"
    diagram = "v_0 ... v_m, sum ─ softmax(q) ─ N ─ f ─ + ─► sum\n                sum ────────────────────┘"
    initialisation = (
        "set by `init`; queries 0: the mean of all sources, which a norm cannot tell from their sum: Pre-LN"
    )
    caveats = (
        "Holds all sources for the whole pass. Of blocks DepthBench reports 2, 5 and 8 dead layers at depths 16, 24 "
        "and 32: in the first block the sum so far has almost no weight. Compiling takes a program for each number of "
        "sources."
    )

    spares_layers = False

    carrier = "the outputs of all blocks"

    def residual(self, site: Site) -> nn.Module:
        return stream_residuals.AttentionResidual(site, self.block)

    def scales_by_depth(self) -> bool:
        return True  # an average has no branches to scale

    def open(self, site: Site) -> nn.Module | None:
        return stream_residuals.Apply(lambda x: ((x,), None))

    def close(self, site: Site) -> nn.Module | None:
        return stream_residuals.HistoryEnd(site)

    def show(self, state: Any) -> Tensor:
        sources, total = state
        return stream_residuals.average(sources, total)

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        sublayers = (1 + (stack.mlp > 0)) * stack.depth
        if not sublayers or sublayers % self.block == 0:
            return []
        fitting = ", ".join(str(n) for n in range(1, sublayers + 1) if sublayers % n == 0)
        text = f"must divide the {sublayers} sublayers of the model. Accepted: {fitting}"
        return [Problem("block", text, self.block)]


@placements.register
class X0Lambdas(Placement):
    """Pre-LN whose stream is mixed with the normed embedding before each layer, by two learned numbers."""

    kind: Literal["x0"] = "x0"
    stream_start: tuple[float, float] = (1.0, 1.0)
    """Start of r in the first and in the last layer, linear between."""
    embedding_start: tuple[float, float] = (0.0, 0.0)
    """The same of z."""
    rule = "x <- r x + z x0 before each layer, then x + f(N(x)); x0 = embedding / rms"
    source = "nanochat 2025, gpt.py; modded-nanogpt"
    diagram = "x ─ * r ─ + ─┬─ N ─ f ─ + ─►\nx0 ─ * z ─┘  └──────────┘"
    initialisation = "set by `init`; r 1, z 0: Pre-LN on a normed embedding"
    caveats = (
        "Its sources train r and z at rates of their own (r 100 times below z), and begin today at r from 1.15 to "
        "1.05, z from 0.20 to 0.05."
    )

    carrier = "the stream and the embedding"

    def open(self, site: Site) -> nn.Module | None:
        return stream_residuals.Apply(lambda x: stream_residuals.double(stream_residuals.normalise(x)))

    def close(self, site: Site) -> nn.Module | None:
        return stream_residuals.Apply(self.show)

    def show(self, state: Any) -> Tensor:
        stream: Tensor = state[0]
        return stream

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        share = site.index / max(1, site.depth - 1)
        starts = [a + (b - a) * share for a, b in (self.stream_start, self.embedding_start)]
        return stream_residuals.X0Residual(site, starts), stream_residuals.X0Residual(site.mlp)
