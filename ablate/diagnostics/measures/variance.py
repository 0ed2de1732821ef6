"""The variance of the outputs of the layers, and of their attention and MLP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.config.lazy import torch
from ablate.diagnostics.measures.base import Measurement, Result, register
from ablate.diagnostics.measures.subject import Batch, select_positions
from ablate.plots.layers import draw_lines

if TYPE_CHECKING:
    from torch import Tensor

    from ablate.plots.figure import Figure


@register
class Variance(Measurement):
    """The variance of each layer's output over all tokens and features (Sun et al. 2025, arXiv 2502.05795, figure 2),
    and the variances of the outputs of its attention and MLP, if these are separate modules."""

    name = "variance"
    title = "Output variance of each layer"
    is_positive = True
    columns = {
        "variance": "variance of the layer's output",
        "attention_variance": "variance of the attention's output",
        "mlp_variance": "variance of the MLP's output",
    }

    def update(self, batch: Batch, number: int) -> None:
        layers = self.subject.layers
        with torch.no_grad():
            with layers.record_states() as states, layers.record_outputs() as outputs:
                self.subject.forward(batch)
            self.observe(batch, states, outputs)

    def observe(self, batch: Batch, states: list[Tensor], outputs: list[dict[str, Tensor]]) -> None:
        """Add the hidden states of a pass and the outputs of the sublayers."""
        for layer, (x, parts) in enumerate(zip(states[1:], outputs, strict=True)):
            for name, value in {"variance": x, **{f"{name}_variance": y for name, y in parts.items()}}.items():
                if value.shape == x.shape:  # such as the MLP of a mixture of experts that returns something else
                    self._merge(f"{name} {layer}", select_positions(value, batch))

    def _merge(self, key: str, x: Tensor) -> None:
        """Return Chan's update of (count, mean, sum of squared deviations), which stays accurate with a large mean."""
        x = x.float()
        variance, mean = torch.var_mean(x, correction=0)
        n, m, s = (float(x.numel()), mean.double().item(), variance.double().item() * x.numel())
        if key in self.sums:
            count, before, squares = self.sums[key].tolist()
            total, delta = count + n, m - before
            n, m, s = total, before + delta * n / total, squares + s + delta**2 * count * n / total
        self.sums[key] = torch.tensor([n, m, s], dtype=torch.float64)

    def result(self) -> Result:
        rows: list[dict[str, float]] = [{"layer": i + 1} for i in range(len(self.subject.layers))]
        for key, sums in self.sums.items():
            name, layer = key.split()
            rows[int(layer)][name] = (sums[2] / sums[0]).item()
        return Result(rows, {"values": int(self.sums["variance 0"][0])})

    @classmethod
    def cost(cls, layers: int) -> float:
        return 1 / 3

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        return draw_lines(cls.name, cls.title, results, cls.columns, log=True)
