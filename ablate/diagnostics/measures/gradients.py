"""The norm of the gradient of each layer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ablate.config.errors import AblateError
from ablate.config.lazy import torch
from ablate.diagnostics.measures.base import Measurement, Result, register
from ablate.diagnostics.measures.layers import Layers
from ablate.diagnostics.measures.subject import Batch
from ablate.distributed import ranks
from ablate.plots.layers import draw_lines

if TYPE_CHECKING:
    from torch import Tensor

    from ablate.plots.figure import Figure


@register
class Gradients(Measurement):
    """The norm of the gradient of a batch's mean loss with respect to all parameters of a layer, averaged over the
    batches. It depends on the batch size, which is among the facts."""

    name = "gradients"
    title = "Gradient norm of each layer"
    is_positive = True
    columns = {"gradient_norm": "norm of the gradient with respect to the layer's parameters"}
    needs_targets = True

    def update(self, batch: Batch, number: int) -> None:
        blocks = self.subject.layers.blocks
        parameters = [[p for p in block.parameters() if p.requires_grad] for block in blocks]
        flat = [p for group in parameters for p in group]
        if not flat:
            raise AblateError(f"{self.subject.label}: no parameter of the layers is trained, so there is no gradient.")
        with torch.enable_grad():
            loss, _, count = self.subject.compute_losses(batch)
            gradients = iter(torch.autograd.grad(loss / count.clamp(min=1), flat, allow_unused=True))
        self.observe([[next(gradients) for _ in group] for group in parameters], int(count))

    def observe(self, gradients: Iterable[Iterable[Tensor | None]], targets: int) -> None:
        """Add the gradients of one batch, one group for each layer."""
        norms = compute_norms(gradients)
        self.add("norm", norms)
        self.add("square", norms.double().square())
        self.add("batches", torch.tensor(1))
        self.add("targets", torch.tensor(targets))

    def result(self) -> Result:
        n = self.sums["batches"]
        mean = self.sums["norm"] / n
        spread = ((self.sums["square"] / n - mean**2).clamp(min=0) / (n - 1).clamp(min=1)).sqrt()
        rows = [
            {"layer": i + 1, "gradient_norm": m, **({"gradient_norm_error": s} if n > 1 else {})}
            for i, (m, s) in enumerate(zip(mean.tolist(), spread.tolist(), strict=True))
        ]
        return Result(rows, {"batches": int(n), "targets_of_a_batch": int(self.sums["targets"] / n)})

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        return draw_lines(cls.name, cls.title, results, cls.columns, log=True)


def compute_norms(gradients: Iterable[Iterable[Tensor | None]]) -> Tensor:
    """Return the norm of each group of gradients, over all ranks if they are sharded."""
    groups = [[g for g in group if g is not None] for group in gradients]
    return torch.stack([ranks.norm(group).detach().float().cpu() if group else torch.zeros(()) for group in groups])


def collect_gradients(layers: Layers) -> list[list[Tensor | None]]:
    """Return the gradients of each layer from the last backward pass."""
    return [[p.grad for p in block.parameters()] for block in layers.blocks]
