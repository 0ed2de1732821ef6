"""How far the streams between layers differ, and by how much the layers to the end stretch them."""

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
class Streams(Measurement):
    """Of placements with several streams: the effective rank of the streams behind each layer, and the gain of the
    mixing maps from each layer to the end, both averaged over the tokens.

    The effective rank of the n streams of a token, H [n, d], is the exponential of the entropy of s_i^2 / sum(s_j^2),
    where s are the singular values of H: 1 where all streams are multiples of one, n where they are orthogonal and
    equally long. (DepthBench's definition, arXiv 2609.32534; Roy and Vetterli 2007 take s itself, which is larger.) The
    gain (mHC, arXiv 2512.24880, figure 3) is of the product of all mixing matrices M, `H <- M H + ...`, from the first
    sublayer of a layer to the last of the model, for each token: its largest absolute row sum (forward) and column sum
    (backward). There is none where the wiring does not name its mixing matrices (`mixing_map`).
    """

    name = "streams"
    title = "The streams between layers"
    is_positive = True
    carriers = "several"
    columns = {
        "effective_rank": "effective rank of the streams behind the layer",
        "forward_gain": "largest row sum of the mixing maps from the layer to the end (identity: 1)",
        "backward_gain": "largest column sum of the same (identity: 1)",
    }

    def update(self, batch: Batch, number: int) -> None:
        layers, sums = self.subject.layers, {}
        assert layers.placement  # others have one stream
        streams = layers.placement.streams
        with torch.no_grad():
            with (
                layers.record_states(show=lambda state: find_effective_rank(streams(state))) as ranks,
                layers.record_mixing() as maps,
            ):
                self.subject.forward(batch)
            for layer, rank in enumerate(ranks[1:], 1):
                sums[f"effective_rank {layer}"] = rank
            if all(maps):
                product = torch.eye(maps[-1][-1].shape[-1], dtype=torch.float64, device=ranks[0].device)
                for layer in range(len(layers), 0, -1):
                    for matrix in reversed(maps[layer - 1]):
                        product = product @ matrix.double()
                    absolute = product.abs().expand(*ranks[0].shape, -1, -1)
                    sums[f"forward_gain {layer}"] = absolute.sum(-1).amax(-1)
                    sums[f"backward_gain {layer}"] = absolute.sum(-2).amax(-1)
        for key, values in sums.items():
            self.add(key, select_positions(values.unsqueeze(-1), batch).sum())
        self.add("count", torch.tensor(len(select_positions(ranks[0].unsqueeze(-1), batch))))

    def result(self) -> Result:
        count = self.sums["count"]
        rows: list[dict[str, float]] = [{"layer": i + 1} for i in range(len(self.subject.layers))]
        for column in self.columns:
            for row in rows:
                if (key := f"{column} {row['layer']}") in self.sums:
                    row[column] = (self.sums[key] / count).item()
        return Result(rows, {"vectors": int(count)})

    @classmethod
    def cost(cls, layers: int) -> float:
        return 1.0

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        return draw_lines(cls.name, cls.title, results, cls.columns, log=True)


def find_effective_rank(streams: Tensor) -> Tensor:
    """Return the effective rank of streams [..., n, d], [...] in float64; NaN where they are not finite."""
    wide = streams.double()
    products = wide @ wide.mT
    finite = products.isfinite().all(-1).all(-1)
    energies = torch.linalg.eigvalsh(products.where(finite[..., None, None], 0.0)).clamp(min=0)  # raises if not finite
    shares = torch.nn.functional.normalize(energies, p=1, dim=-1, eps=torch.finfo(energies.dtype).tiny)
    return torch.special.entr(shares).sum(-1).exp().where(finite, torch.nan)
