"""The wiring of placements whose layers hand on more than one stream: modules called with (state, f, *arguments of f).

Streams are [batch, tokens, n, d], a pair is a tuple of two streams, a history a tuple of (sources, sum so far or None).
No parameter has dimension 0, which sharding refuses. A module whose output is `M H + ...` of its streams H [n, d] has a
method `mixing_map(state)` that returns M [..., n, n]: diagnostics multiply these over the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ablate.norms.layer_modules import widen, without_autocast
from ablate.norms.placement import Site
from ablate.norms.residuals import Sublayer, add_branch, repeat

TwoStreams = tuple[Tensor, Tensor]
History = tuple[tuple[Tensor, ...], Tensor | None]
EPS = 1e-6


class Apply(nn.Module):
    """A function without parameters, of the embedding or of the last state."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, state: Any) -> Any:
        return self.function(state)


def double(x: Tensor) -> TwoStreams:
    """Return (x, x) as two tensors: the first layer then shares the program of all others, which are not called with
    one tensor twice, and torch fails where it compares such a call with a program of another placement."""
    return x, x.view_as(x)


class HyperConnection(nn.Module):
    """`H <- beta u^T + A_r^T H` with `u = f(N(A_m^T H))`: `alpha` [n, 1 + n] is (A_m | A_r), `beta` [n, 1]. `dynamic`
    adds `scale * tanh(N(H) W)` to both, for each token, with W [d, 1 + n] and [d, 1] from 0."""

    mixing: ClassVar[tuple[str, ...]] = ("alpha", "beta")
    readouts: ClassVar[tuple[str, ...]] = ("alpha_map", "beta_map")

    def __init__(self, site: Site, n: int, dynamic: bool, tanh: bool) -> None:
        super().__init__()
        self.norm, self.drop, self.dynamic = site.norm(), site.drop(), dynamic
        self.on_stream = ("alpha", *(("alpha_map", "alpha_scale", "stream_norm") if dynamic else ()))
        self.alpha, self.beta = nn.Parameter(torch.zeros(n, 1 + n)), nn.Parameter(torch.ones(n, 1))
        with torch.no_grad():
            self.alpha[site.sublayer % n, 0].fill_(1.0)
            self.alpha[:, 1:].fill_diagonal_(1.0)
        self.bend = torch.tanh if tanh else nn.Identity()
        if dynamic:
            self.stream_norm = repeat(site.norm(), n)
            self.alpha_map = nn.Parameter(torch.zeros(site.dim, 1 + n))
            self.beta_map = nn.Parameter(torch.zeros(site.dim, 1))
            self.alpha_scale = nn.Parameter(torch.full((1,), 0.01))
            self.beta_scale = nn.Parameter(torch.full((1,), 0.01))
        by_token = n * (n + 2) if dynamic else 0
        self.flops = 2 * site.dim * (n * (n + 1) + by_token + n)  # of one token, in the forward pass

    def weigh(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return (A_m | A_r)^T [..., 1 + n, n] and beta [..., n, 1]."""
        alpha: Tensor = self.alpha
        beta: Tensor = self.beta
        if self.dynamic:
            normed = self.stream_norm(streams)
            alpha = alpha + self.alpha_scale * self.bend(normed @ self.alpha_map)
            beta = beta + self.beta_scale * self.bend(normed @ self.beta_map)
        return alpha.transpose(-1, -2).to(streams.dtype), beta.to(streams.dtype)

    def mixing_map(self, streams: Tensor) -> Tensor:
        return self.weigh(streams)[0][..., 1:, :]

    def forward(self, streams: Tensor, f: Sublayer, *args: Any) -> Tensor:
        weights, beta = self.weigh(streams)
        mixed = weights @ streams  # [..., 1 + n, d]
        u = self.drop(f(self.norm(mixed[..., 0, :]), *args))
        return torch.addcmul(mixed[..., 1:, :], beta, u.unsqueeze(-2))


class _Balance(torch.autograd.Function):
    """Sinkhorn's iteration on logits [n, n, tokens], with a backward pass of its own: autograd's has twice as many
    kernels, and keeps the matrices of all steps where their divisors suffice."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int) -> Tensor:
        shares, divisors = logits.softmax(1), []
        weights = shares + EPS
        for step in range(2 * iterations - 1):  # columns first, since the rows of a softmax sum to 1
            divisors.append(weights.sum(step % 2, keepdim=True) + EPS)
            weights = weights / divisors[-1]
        ctx.save_for_backward(shares, weights, *divisors)
        return weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (shares, weights, *divisors), gradient = ctx.saved_tensors, gradient.contiguous()
        for step in reversed(range(len(divisors))):
            gradient = (gradient - (gradient * weights).sum(step % 2, keepdim=True)) / divisors[step]
            weights = weights * divisors[step]  # those before the step
        return shares * (gradient - (gradient * shares).sum(1, keepdim=True)), None


def balance(logits: Tensor, iterations: int) -> Tensor:
    """Return the nearly doubly stochastic matrices [..., n, n] of `logits` by Sinkhorn's iteration."""
    tokens_last = logits.flatten(0, -3).permute(1, 2, 0).contiguous()  # sums of n numbers are then sums of vectors
    balanced: Tensor = _Balance.apply(tokens_last, iterations)
    return balanced.permute(2, 0, 1).contiguous().view(logits.shape)


class _OfStreams(nn.Module):
    """Numbers for each token from all of its streams: `scale * Phi v / rms(v) + base`, v = vec(H) [n d], in float32."""

    mixing: ClassVar[tuple[str, ...]] = ("base", "scale")
    readouts: ClassVar[tuple[str, ...]] = ("projection",)

    def __init__(self, width: int, sizes: Sequence[int], scale: float, std: float) -> None:
        super().__init__()
        self.sizes = list(sizes)
        self.projection = nn.Parameter(torch.zeros(sum(sizes), width))
        if std:
            nn.init.normal_(self.projection, std=std)
        self.base, self.scale = nn.Parameter(torch.zeros(sum(sizes))), nn.Parameter(torch.full((len(sizes),), scale))
        self.flops = 2 * sum(sizes) * width

    def forward(self, streams: Tensor) -> list[Tensor]:
        v = streams.flatten(-2)
        z = F.linear(v, self.projection.to(v.dtype)) * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS)
        parts = zip(
            z.split(self.sizes, -1), self.base.to(v.dtype).split(self.sizes), self.scale.to(v.dtype), strict=True
        )
        return [part * scale + base for part, base, scale in parts]


class ManifoldHyperConnection(nn.Module):
    """`H <- p u^T + C^T H` with `u = f(N(r H))`: r = sigmoid, p = 2 sigmoid [n], C = `balance` [n, n] of numbers by
    token. starts: of the logits of r, p and C."""

    on_stream: ClassVar[tuple[str, ...]] = ("maps",)

    def __init__(
        self, site: Site, n: int, iterations: int, starts: tuple[float, float, float], scale: float, std: float
    ) -> None:
        super().__init__()
        self.norm, self.drop, self.n, self.iterations = site.norm(), site.drop(), n, iterations
        read, write, mix = starts
        self.maps = _OfStreams(n * site.dim, (n, n, n * n), scale, std)
        with torch.no_grad():
            own = self.maps.base.split((n, n, n * n))
            own[0].fill_(-read)[site.sublayer % n].fill_(read)
            own[1].fill_(write)
            own[2].fill_(-mix)[:: n + 1].fill_(mix)  # the diagonal, row by row
        self.flops = 2 * site.dim * n * (n + 2)

    def weigh(self, wide: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return r [..., 1, n], p [..., n, 1] and C^T [..., n, n] for streams in float32."""
        read, write, mix = self.maps(wide)
        balanced = balance(mix.unflatten(-1, (self.n, self.n)), self.iterations)
        return (read.sigmoid() + EPS).unsqueeze(-2), 2 * write.sigmoid().unsqueeze(-1), balanced.transpose(-1, -2)

    def mixing_map(self, streams: Tensor) -> Tensor:
        with without_autocast(streams):
            return self.weigh(widen(streams))[2]

    def forward(self, streams: Tensor, f: Sublayer, *args: Any) -> Tensor:
        with without_autocast(streams):
            wide = widen(streams)
            read, write, mix = self.weigh(wide)
            x, mixed = (read @ wide).squeeze(-2).to(streams.dtype), mix @ wide
        u = self.drop(f(self.norm(x), *args))
        return torch.addcmul(mixed, write, u.unsqueeze(-2).to(mixed.dtype)).to(streams.dtype)


class LearnedRead(nn.Module):
    """Streams [..., n, d] -> [..., d]: `(sigmoid + eps) H` of numbers by token."""

    def __init__(self, site: Site, n: int, scale: float, std: float) -> None:
        super().__init__()
        self.maps = _OfStreams(n * site.dim, (n,), scale, std)

    def forward(self, streams: Tensor) -> Tensor:
        with without_autocast(streams):
            wide = widen(streams)
            (read,) = self.maps(wide)
            return ((read.sigmoid() + EPS).unsqueeze(-2) @ wide).squeeze(-2).to(streams.dtype)


def normalise(x: Tensor) -> Tensor:
    """Return x / rms(x)."""
    return F.rms_norm(widen(x), x.shape[-1:], eps=EPS).to(x.dtype)


class X0Residual(nn.Module):
    """`x + f(N(x))` of a pair (x, x0), after `x <- r x + z x0` where `starts` are given: those of r and z, [1]."""

    def __init__(self, site: Site, starts: Sequence[float] | None = None) -> None:
        super().__init__()
        self.norm, self.drop, self.mixes = site.norm(), site.drop(), starts is not None
        if starts is not None:
            self.on_stream = ("stream", "embedding")
            self.stream, self.embedding = (nn.Parameter(torch.full((1,), start)) for start in starts)

    def forward(self, pair: TwoStreams, f: Sublayer, *args: Any) -> TwoStreams:
        x, x0 = pair
        if self.mixes:
            x = (self.stream * x + self.embedding * x0).to(x.dtype)
        return add_branch(x, self.drop, f(self.norm(x), *args)), x0


class SiameseResidual(nn.Module):
    """`X <- N1(X); u = f(N_in(X + N2(Y))); (X + u / c, Y + u)`, c = sqrt(2 l). keeps_x: X is normed for f alone."""

    factors: ClassVar[tuple[str, ...]] = ("share",)
    on_stream: ClassVar[tuple[str, ...]] = ("post",)

    def __init__(self, site: Site, keeps_x: bool = False) -> None:
        super().__init__()
        self.post, self.pre, self.input = site.norm(), site.norm(), site.norm()
        self.drop, self.keeps_x, self.share = site.drop(), keeps_x, (2 * (site.index + 1)) ** -0.5

    def forward(self, pair: TwoStreams, f: Sublayer, *args: Any) -> TwoStreams:
        x, y = pair
        normed = self.post(x)
        u = self.drop(f(self.input(normed + self.pre(y)), *args))
        return (x if self.keeps_x else normed) + u * self.share, y + u


class SiameseAttention(nn.Module):
    """The attention of hybrid-pre: `u = f(c1 X + N2(Y)); (X + u / c, Y + u)` with a learned c1 [d]; normed: N1(X) in
    the place of c1 X."""

    factors: ClassVar[tuple[str, ...]] = ("share",)

    def __init__(self, site: Site, normed: bool) -> None:
        super().__init__()
        self.pre, self.drop, self.share = site.norm(), site.drop(), (2 * (site.index + 1)) ** -0.5
        self.post = site.norm() if normed else None
        self.scale = None if normed else nn.Parameter(torch.ones(site.dim))

    def forward(self, pair: TwoStreams, f: Sublayer, *args: Any) -> TwoStreams:
        x, y = pair
        own = (self.scale * x).to(x.dtype) if self.post is None else self.post(x)  # type: ignore[operator]
        u = self.drop(f(own + self.pre(y), *args))
        return x + u * self.share, y + u


class SiameseEnd(nn.Module):
    """(X, Y) -> N_a(X) + N_b(Y)."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.post, self.pre = site.norm(), site.norm()

    def forward(self, pair: TwoStreams) -> Tensor:
        return self.post(pair[0]) + self.pre(pair[1])


def average(sources: tuple[Tensor, ...], total: Tensor | None) -> Tensor:
    """Return the mean of all sources and the sum so far, the aggregation of queries that are 0."""
    values = sources if total is None else (*sources, total)
    return torch.stack(values).mean(0)


class _Aggregate(nn.Module):
    """`sum_i w_i v_i` with `w = softmax_i(q . v_i / rms(v_i) * g)` over sources v_i [..., d], in float32; the gain g
    [d] of the keys' norm, q [d] from 0."""

    mixing: ClassVar[tuple[str, ...]] = ("query",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.gain = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.ones(dim))

    def forward(self, values: Sequence[Tensor]) -> Tensor:
        wide = [widen(v) for v in values]
        direction = (self.query * self.gain).to(wide[0].dtype)
        scores = [(v * direction).sum(-1) * torch.rsqrt(v.square().mean(-1) + EPS) for v in wide]
        weights = torch.stack(scores).softmax(0).unsqueeze(-1)
        mean = weights[0] * wide[0]
        for weight, v in zip(weights[1:], wide[1:], strict=True):
            mean = torch.addcmul(mean, weight, v)
        return mean.to(values[0].dtype)


class AttentionResidual(nn.Module):
    """Of a history: `total + f(N(aggregate))`, which becomes a source where a block of sublayers ends. The first
    sublayer has one source and nothing to learn."""

    def __init__(self, site: Site, block: int) -> None:
        super().__init__()
        self.norm, self.drop = site.norm(), site.drop()
        self.ends = (site.sublayer + 1) % block == 0
        self.aggregate = _Aggregate(site.dim) if site.sublayer else None
        self.flops = 4 * site.dim * (1 + site.sublayer // block + (site.sublayer % block > 0)) * (site.sublayer > 0)

    def forward(self, history: History, f: Sublayer, *args: Any) -> History:
        sources, total = history
        values = sources if total is None else (*sources, total)
        x = values[0] if self.aggregate is None else self.aggregate(values)
        u = f(self.norm(x), *args)
        total = self.drop(u) if total is None else add_branch(total, self.drop, u)
        return ((*sources, total), None) if self.ends else (sources, total)


class HistoryEnd(nn.Module):
    """The history at its end -> one more aggregation over all sources."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.aggregate = _Aggregate(site.dim)

    def forward(self, history: History) -> Tensor:
        sources, total = history
        mean: Tensor = self.aggregate(sources if total is None else (*sources, total))
        return mean
