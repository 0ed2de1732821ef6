"""The norm of the derivative of the last layer's output with respect to the input of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.config.lazy import torch
from ablate.diagnostics.measures.base import Measurement, Result, register
from ablate.diagnostics.measures.subject import Batch
from ablate.plots.layers import draw_by_layer_and_depth

if TYPE_CHECKING:
    from torch import Tensor

    from ablate.plots.figure import Figure


@register
class Jacobian(Measurement):
    """The Frobenius norm of `d y_L / d x_l`: the derivative of the last layer's output with respect to the input of
    layer l, for whole sequences (Sun et al. 2025, arXiv 2502.05795, section 3, treat l = 1).

    For a random vector v of independent standard normal numbers, the expectation of |v^T J|^2 is |J|^2: the result is
    the mean over the sequences of one vector-Jacobian product each, with its standard error. The `gain` is the norm
    divided by the root of the number of values of a sequence, so that models of different widths and lengths can be
    compared: the identity has gain 1.
    """

    name = "jacobian"
    title = "Norm of the Jacobian from the input of a layer to the output of the last"
    is_positive = True
    carriers = "one"
    columns = {"jacobian_gain": "norm of d y_L / d x_l over the root of its size (identity: 1)"}

    def update(self, batch: Batch, number: int) -> None:
        layers = self.subject.layers
        with torch.enable_grad(), layers.record_states(lambda x: x.detach().requires_grad_()) as states:
            self.subject.forward(batch)
            y = states[-1]
            random = torch.Generator().manual_seed(self.options.seed * 1_000_003 + number)
            v = torch.randn(y.shape, generator=random).to(y)
            if batch.there is not None and batch.there.shape == y.shape[:-1]:
                v = v * batch.there.unsqueeze(-1)
            gradients = torch.autograd.grad(y, states[:-1], v)
        squares = torch.stack([g.float().flatten(1).square().sum(1) for g in gradients])  # [layers, batch]
        sizes = torch.full((len(y),), y[0].numel(), device=y.device)
        if batch.there is not None and batch.there.shape == y.shape[:-1]:
            sizes = batch.there.sum(1) * y.shape[-1]
        self._add_samples("norm", squares.double())
        self._add_samples("gain", squares.double() / sizes)
        self.add("count", torch.tensor(len(y)))

    def _add_samples(self, name: str, samples: Tensor) -> None:
        self.add(name, samples.sum(1))
        self.add(f"{name} squared", samples.square().sum(1))

    def result(self) -> Result:
        rows: list[dict[str, float]] = [{"layer": i + 1} for i in range(len(self.subject.layers))]
        n = self.sums["count"].item()
        for name in ("norm", "gain"):
            mean = self.sums[name] / n
            error = ((self.sums[f"{name} squared"] / n - mean**2).clamp(min=0) / max(1.0, n - 1)).sqrt()
            for row, m, e in zip(rows, mean.tolist(), error.tolist(), strict=True):
                row[f"jacobian_{name}"] = m**0.5
                if n > 1:  # that of a root, by its derivative
                    row[f"jacobian_{name}_error"] = e / (2 * m**0.5) if m else 0.0
        return Result(rows, {"samples": int(n)})

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        (item,) = cls.columns.items()
        return draw_by_layer_and_depth(cls.name, cls.title, results, *item)
