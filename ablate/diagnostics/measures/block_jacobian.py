"""The nearness of each layer to the identity: its Jacobian for one token."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ablate.config.lazy import torch
from ablate.diagnostics.measures.base import Measurement, Result, register, to_json_number
from ablate.diagnostics.measures.subject import Batch
from ablate.plots.figure import Figure
from ablate.plots.layers import Matrix, arrange_matrices

if TYPE_CHECKING:
    from torch import Tensor

SEQUENCES, FEATURES, DIGITS = 64, 64, 3


@register
class BlockJacobian(Measurement):
    """The Jacobian of each layer for one token, `d x_(l+1, t) / d x_(l, t)` [d, d], averaged over tokens (Sun et al.
    2025, arXiv 2502.05795 v5, figure 5): for a layer that has become the identity, it is the identity matrix.

    The average is over one random position t in each of the first 64 sequences, or over one patch of each image.
    The derivatives of the first 64 features of the output are measured, with respect to all of the input. Of the
    average J, `diagonal_share` is the sum of |J_ii| over that of all |J_ij|: 1 for a diagonal matrix; it falls with the
    width, so that only models of one width can be compared. `identity_distance` is |J - I| / |I| (Frobenius norms of
    these rows): 0 for the identity. The facts contain |J| of the first 64 features of both sides (`matrices`); what is
    not finite is None there, and blank in the maps.
    """

    name = "block_jacobian"
    title = "Jacobian of each layer for one token, averaged over tokens"
    columns = {
        "diagonal_share": "share of the diagonal in the sum of |J| (diagonal matrix: 1)",
        "identity_distance": "|J - I| / |I| of the layer (identity: 0)",
    }
    needs_same_shape: ClassVar[bool] = True
    carriers = "one"
    during_training: ClassVar[bool] = False

    def update(self, batch: Batch, number: int) -> None:
        before = int(self.sums["count"].item()) if self.sums else 0
        if before >= SEQUENCES:
            return
        batch = batch.take(SEQUENCES - before)
        layers = self.subject.layers
        with torch.enable_grad():
            with layers.record_states(lambda x: x.detach().requires_grad_()) as states:
                self.subject.forward(batch)
            jacobians = [
                _sum_jacobians(x, y, self._choose_positions(batch, y, before)) for x, y in itertools.pairwise(states)
            ]
        self.add("jacobian", torch.stack(jacobians))
        self.add("count", torch.tensor(len(states[0])))

    def _choose_positions(self, batch: Batch, y: Tensor, before: int) -> Tensor:
        """Return one position of each item [batch], the same for every batching, and never padding."""
        lengths = [y[0, ..., 0].numel()] * len(y)
        if batch.there is not None and batch.there.shape == y.shape[:-1]:
            lengths = batch.there.sum(1).tolist()
        positions = []
        for item, length in enumerate(lengths, before):
            random = torch.Generator().manual_seed(self.options.seed * 1_000_003 + item)
            positions.append(int(torch.randint(max(1, int(length)), (), generator=random)))
        return torch.tensor(positions, device=y.device)

    def result(self) -> Result:
        mean = self.sums["jacobian"] / self.sums["count"]  # [layers, features, d]
        identity = torch.eye(*mean.shape[1:], dtype=mean.dtype)
        share = (mean * identity).abs().sum((1, 2)) / mean.abs().sum((1, 2))
        distance = (mean - identity).flatten(1).norm(dim=1) / identity.norm()
        rows = [
            {"layer": layer, "diagonal_share": s, "identity_distance": d}
            for layer, (s, d) in enumerate(zip(share.tolist(), distance.tolist(), strict=True), 1)
        ]
        matrices = store_matrices(mean[:, :, : mean.shape[1]].abs().tolist())
        return Result(rows, {"vectors": int(self.sums["count"]), "features": mean.shape[1], "matrices": matrices})

    @classmethod
    def cost(cls, layers: int) -> float:
        return float(FEATURES)

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        part = arrange_matrices({name: list_matrices(result) for name, result in results.items()}, "|J|")
        return Figure(cls.name, cls.title, [part])


def list_matrices(result: Result) -> list[tuple[str, Matrix]]:
    """Return (title, |J| [features, features]) of each layer."""
    titles = [f"layer {i}, diagonal {100 * share:.0f} %" for i, share in enumerate(result.column("diagonal_share"), 1)]
    return list(zip(titles, read_matrices(result), strict=True))


def store_matrices(matrices: Sequence[Sequence[Sequence[float]]]) -> list[list[list[float | None]]]:
    """Return matrices in three significant digits for the facts of a result; None for a number that is not finite."""
    return [[[to_json_number(float(f"{value:.{DIGITS}g}")) for value in row] for row in matrix] for matrix in matrices]


def read_matrices(result: Result) -> Matrix:
    """Return |J| of each layer [layers, features, features] as `store_matrices` wrote it; NaN for None."""
    return np.array(result.facts["matrices"], dtype=float)


def _sum_jacobians(x: Tensor, y: Tensor, positions: Tensor) -> Tensor:
    """Return the sum over the items of d y_t / d x_t for the first features of y, [features, d] in float64, where t is
    the item's position of `positions` [batch]; x and y are [batch, ..., d]."""
    items, features = torch.arange(len(y), device=y.device), min(FEATURES, y.shape[-1])
    rows = []
    for feature in range(features):
        v = torch.zeros_like(y)
        v.flatten(1, -2)[items, positions, feature] = 1
        (gradient,) = torch.autograd.grad(y, x, v, retain_graph=True)
        rows.append(gradient.flatten(1, -2)[items, positions].double().sum(0).cpu())
    return torch.stack(rows)
