"""The largest factor by which the layers from a layer on stretch a change of its input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ablate.config.lazy import torch
from ablate.diagnostics.measures.base import Measurement, Result, register
from ablate.diagnostics.measures.subject import Batch
from ablate.plots.layers import draw_by_layer_and_depth

if TYPE_CHECKING:
    from torch import Tensor

    from ablate.plots.figure import Figure

SEQUENCES, ITERATIONS, TOLERANCE = 8, 50, 1e-4


@register
class Spectral(Measurement):
    """The spectral norm of `d y_L / d x_l`: the largest singular value of the derivative of the last layer's output
    with respect to the input of layer l, for whole sequences (Sun et al. 2025, arXiv 2502.05795, whose theorems bound
    it for l = 1).

    By power iteration on J^T J from a random vector: each step takes a Jacobian-vector product J v and the vector-
    Jacobian product J^T (J v). The result is the combination of all vectors so far, not of the last alone, that J
    stretches most (Lanczos), which needs a tenth of the steps where the largest singular values are close to one
    another. A value is a lower bound, which grows from step to step: the iteration ends when it grows by less than 0.01
    % in every sequence, and after 50 steps in any case (`converged` is the share of norms for which it ended before).
    The result is the mean over the first 8 sequences, with its standard error.
    """

    name = "spectral"
    title = "Spectral norm of the Jacobian from the input of a layer to the output of the last"
    is_positive = True
    columns = {"spectral_norm": "largest singular value of d y_L / d x_l (identity: 1)"}
    needs_same_shape: ClassVar[bool] = True
    carriers = "one"
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
            pairs = [_find_norm(x, y, torch.randn(y.shape, generator=random).to(y), mask) for x in inputs]
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
        return draw_by_layer_and_depth(cls.name, cls.title, results, *item)


def _find_norm(x: Tensor, y: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return (spectral norm [batch], whether the iteration converged [batch]) of the derivative J of y [batch, ..., d]
    with respect to x of the same shape, both restricted to `mask` [batch, ...], iterating from `v`. The norm of a
    sequence whose products overflow is NaN, and has not converged."""
    w = torch.zeros_like(y, requires_grad=True)
    (pulled,) = torch.autograd.grad(y, x, w, create_graph=True)  # J^T w: its derivative by w, times v, is J v
    norm = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    growing = torch.ones_like(norm, dtype=torch.bool)
    basis, images = [_normalise(v * mask.unsqueeze(-1), [])], []
    for _ in range(ITERATIONS):
        (image,) = torch.autograd.grad(pulled, w, basis[-1].view_as(y), retain_graph=True)
        image = image * mask.unsqueeze(-1)
        images.append(image.flatten(1))
        stacked = torch.stack(images, 1).double()  # [batch, steps, n]
        finite = stacked.isfinite().flatten(1).all(1)
        kept = stacked.where(finite[:, None, None], 0.0)  # eigvalsh raises if one matrix of a batch is not finite
        grown = torch.linalg.eigvalsh(kept @ kept.mT)[:, -1].clamp(min=0).sqrt()
        growing = grown - norm > TOLERANCE * grown
        norm = grown.where(finite, torch.nan)
        if not growing.any():
            break
        (v,) = torch.autograd.grad(y, x, image, retain_graph=True)
        basis.append(_normalise(v * mask.unsqueeze(-1), basis))
    return norm, finite & ~growing


def _normalise(vector: Tensor, basis: list[Tensor]) -> Tensor:
    """Return the part of `vector` [batch, ...] that is orthogonal to the unit vectors of `basis`, as unit vectors
    [batch, n]."""
    vector = vector.flatten(1)
    for other in basis * 2:  # the second pass removes what rounding has left
        vector = vector - (vector * other).sum(1, keepdim=True) * other
    return torch.nn.functional.normalize(vector, dim=1)
