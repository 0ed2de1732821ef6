"""The largest factor by which the layers from a layer on stretch a change of its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ablate.config.lazy import LazyModule
from ablate.diagnostics.measures.base import Measurement, Result, register
from ablate.diagnostics.measures.subject import Batch
from ablate.plots.layers import draw_by_layer_and_depth

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor
else:
    torch = LazyModule("torch")

SEQUENCES, ITERATIONS, TOLERANCE = 8, 200, 1e-4


@register
class Spectral(Measurement):
    """The spectral norm of `d y_L / d x_l`: the largest singular value of the derivative of the last layer's output
    with respect to the input of layer l, for whole sequences (Sun et al. 2025, arXiv 2502.05795, whose theorems bound
    it for l = 1).

    By power iteration on J J^T from a random vector u: v = J^T u is a vector-Jacobian product, u = J v a
    Jacobian-vector product. |J v| of a unit vector v grows towards the norm from below, so that a result is a lower
    bound; the iteration ends when a step adds less than 0.01 % in every sequence, and after 200 steps in any case
    (`converged` is the share of norms for which it ended before). The result is the mean over the first 8 sequences,
    with its standard error.
    """

    name = "spectral"
    title = "Spectral norm of the Jacobian from the input of a layer to the output of the last"
    columns = {"spectral_norm": "largest singular value of d y_L / d x_l (identity: 1)"}
    during_training: ClassVar[bool] = False

    def update(self, batch: Batch, number: int) -> None:
        room = SEQUENCES - int(self.sums["count"].item() if self.sums else 0)
        if room <= 0:
            return
        batch = batch.take(room)
        layers, double_backward = self.subject.layers, torch.nn.attention.SDPBackend.MATH  # the only one that has it
        random = torch.Generator().manual_seed(self.options.seed * 1_000_003 + number)
        with torch.enable_grad(), torch.nn.attention.sdpa_kernel(double_backward):
            with layers.record_states(lambda x: x.detach().requires_grad_()) as states:
                self.subject.forward(batch)
            *inputs, y = states
            mask = torch.ones(y.shape[:-1], dtype=torch.bool, device=y.device)
            if batch.there is not None and batch.there.shape == mask.shape:
                mask = batch.there
            pairs = [_iterate(x, y, torch.randn(y.shape, generator=random).to(y), mask) for x in inputs]
        norms, converged = (torch.stack(values) for values in zip(*pairs, strict=True))  # [layers, batch]
        self.add("norm", norms.sum(1))
        self.add("norm squared", norms.square().sum(1))
        self.add("converged", converged.sum())
        self.add("count", torch.tensor(len(y)))

    def result(self) -> Result:
        n = self.sums["count"].item()
        mean = self.sums["norm"] / n
        error = ((self.sums["norm squared"] / n - mean**2).clamp(min=0) / max(1.0, n - 1)).sqrt()
        rows = [
            {"layer": i + 1, "spectral_norm": m, **({"spectral_norm_error": e} if n > 1 else {})}
            for i, (m, e) in enumerate(zip(mean.tolist(), error.tolist(), strict=True))
        ]
        return Result(rows, {"samples": int(n), "converged": self.sums["converged"].item() / (n * len(rows))})

    @classmethod
    def cost(cls, layers: int) -> float:
        return float(layers * ITERATIONS)

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        (item,) = cls.columns.items()
        return draw_by_layer_and_depth(cls.title, results, *item)


def _iterate(x: Tensor, y: Tensor, u: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return (spectral norm [batch], whether the iteration converged [batch]) of the derivative of y [batch, ..., d]
    with respect to x of the same shape, both restricted to `mask` [batch, ...], by power iteration from `u`."""
    w = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, w, create_graph=True)  # J^T w: its derivative by w, times v, is J v
    norm = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    growing = torch.ones_like(norm, dtype=torch.bool)
    for _ in range(ITERATIONS):
        (v,) = torch.autograd.grad(y, x, u, retain_graph=True)
        v, _ = _normalise(v, mask)
        (u,) = torch.autograd.grad(pulled, w, v, retain_graph=True)
        u, grown = _normalise(u, mask)
        growing = (grown - norm) > TOLERANCE * grown
        norm = grown
        if not growing.any():
            break
    return norm, ~growing


def _normalise(vector: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return `vector` [batch, ..., d] with zeros outside `mask` and unit norm in each item, and those norms."""
    vector = vector * mask.unsqueeze(-1)
    norm = vector.double().flatten(1).norm(dim=1)
    scale = norm.clamp(min=torch.finfo(torch.float32).tiny).to(vector.dtype)
    return vector / scale.view(-1, *[1] * (vector.dim() - 1)), norm
