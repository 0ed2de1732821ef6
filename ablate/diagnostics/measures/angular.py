"""The angle between the hidden states of two layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ablate.config.lazy import torch
from ablate.diagnostics.measures.base import DEFAULT, Measurement, Options, Result, register
from ablate.diagnostics.measures.subject import Batch, Subject, select_positions
from ablate.plots.layers import Matrix, draw_heat_maps

if TYPE_CHECKING:
    from torch import Tensor

    from ablate.plots.figure import Figure


def angular_distance(x: Tensor, y: Tensor) -> Tensor:
    """Return `arccos(cos(x, y)) / pi` in [0, 1] for each token (Li et al. 2024, arXiv 2412.13795, section 2).

    [..., d] and [..., d] -> [...], in float32 (float64 for float64 input). It is computed by Kahan's formula, `2
    atan2(|u - v|, |u + v|)` of the unit vectors: rounding cannot move it outside [0, 1], where arccos is NaN, and equal
    vectors have a distance of exactly 0, whereas the arccos of a rounded cosine may give 1e-4.
    """
    return _measure_distance(_normalize(x), _normalize(y))


def _measure_distance(u: Tensor, v: Tensor) -> Tensor:
    """Return the angular distance of unit vectors."""
    return 2 / torch.pi * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1))


def _normalize(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x if x.dtype == torch.float64 else x.float(), dim=-1)


@register
class Angular(Measurement):
    """The angular distance between the inputs of layers l and l + n, for every l and n, averaged over the tokens. The
    output of the last layer counts as the input of layer L + 1."""

    name = "angular"
    title = "Angular distance between the inputs of layers l and l + n"
    columns = {"angular_distance": "angular distance of a layer's input and output (share of pi)"}
    needs_same_shape = True

    def __init__(self, subject: Subject, options: Options = DEFAULT) -> None:
        super().__init__(subject, options)
        self.sums = {"distance": torch.zeros((len(subject.layers) + 1,) * 2, dtype=torch.float64)}

    def update(self, batch: Batch, number: int) -> None:
        with torch.no_grad():
            with self.subject.layers.record_states() as states:
                self.subject.forward(batch)
            self.observe(batch, states)

    def observe(self, batch: Batch, states: list[Tensor]) -> None:
        """Add the distances between the hidden states of a pass."""
        self.subject.layers.require_same_shape(states)
        units = [_normalize(select_positions(x, batch, self.options.positions)) for x in states]
        distances = torch.zeros_like(self.sums["distance"])
        for i, u in enumerate(units[:-1]):
            for j in range(i + 1, len(units)):
                distances[i, j] = _measure_distance(u, units[j]).sum().double().cpu()
        self.add("distance", distances)
        self.add("count", torch.tensor(len(units[0])))

    def result(self) -> Result:
        mean, size = self.sums["distance"] / self.sums["count"], len(self.subject.layers)
        rows = [
            {"layer": i + 1, "distance": n, "angular_distance": mean[i, i + n].item()}
            for n in range(1, size + 1)
            for i in range(size + 1 - n)
        ]
        return Result(rows, {"positions": self.options.positions, "vectors": int(self.sums["count"])})

    @classmethod
    def cost(cls, layers: int) -> float:
        return 1 / 3

    @classmethod
    def per_layer(cls, result: Result) -> dict[str, list[float]]:
        return {"angular_distance": [row["angular_distance"] for row in result.rows if row["distance"] == 1]}

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        matrices = {name: distance_matrix(result) for name, result in results.items()}
        return draw_heat_maps(cls.name, cls.title, matrices, "angular distance (share of pi)")


def distance_matrix(result: Result) -> Matrix:
    """Return the distances [n, l] of a result; NaN if there is no such pair of layers."""
    size = int(max(row["layer"] for row in result.rows))
    matrix = np.full((size, size), np.nan)
    for row in result.rows:
        matrix[int(row["distance"]) - 1, int(row["layer"]) - 1] = row["angular_distance"]
    return matrix
