"""The increase of the loss of a model without one of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.config.lazy import LazyModule
from ablate.diagnostics.measures.base import DEFAULT, Measurement, Options, Result, register
from ablate.diagnostics.measures.subject import Batch, Subject
from ablate.plots.layers import draw_bars

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor
else:
    torch = LazyModule("torch")


@register
class Pruning(Measurement):
    """The loss without layer l minus the loss of the whole model, in nats; for classifiers also the change of the
    accuracy, and the change of each of `Options.metrics`. A layer is skipped in place: the others keep their index,
    placement and scale."""

    name = "pruning"
    title = "Effect of removing one layer"
    columns = {
        "loss_increase": "increase of the loss without the layer (nats)",
        "accuracy_change": "change of the accuracy without the layer (share of images)",
    }
    needs_targets = True
    needs_same_shape = True

    def __init__(self, subject: Subject, options: Options = DEFAULT) -> None:
        super().__init__(subject, options)
        size = len(subject.layers) + 1  # the whole model, then without each layer
        self.sums = {name: torch.zeros(size, dtype=torch.float64) for name in ("loss", "right")}
        self.sums["count"] = torch.zeros((), dtype=torch.float64)

    def update(self, batch: Batch, number: int) -> None:
        with torch.no_grad():
            loss, right, count = self.subject.compute_losses(batch)
            losses = [(loss, right)]
            for layer in range(len(self.subject.layers)):
                with self.subject.layers.skip(layer):
                    losses.append(self.subject.compute_losses(batch)[:2])
        self.add("loss", torch.stack([pair[0] for pair in losses]))
        self.add("right", torch.stack([pair[1] for pair in losses]))
        self.add("count", count)

    def result(self) -> Result:
        count = self.sums["count"]
        changes = {"loss_increase": self.sums["loss"] / count}
        if self.subject.classifies:
            changes["accuracy_change"] = self.sums["right"] / count
        for name, metric in self.options.metrics.items():
            changes[f"{name}_change"] = self._score_each(metric)
        rows = [
            {"layer": layer, **{name: (values[layer] - values[0]).item() for name, values in changes.items()}}
            for layer in range(1, len(self.subject.layers) + 1)
        ]
        whole = {name.rpartition("_")[0]: values[0].item() for name, values in changes.items()}
        return Result(rows, {"whole": whole, "targets": int(count)})

    def _score_each(self, metric: object) -> Tensor:
        """Return the benchmark's score of the whole model, then without each layer."""
        assert callable(metric)
        layers = self.subject.layers
        scores = [float(metric(layers.model))]
        for layer in range(len(layers)):
            with layers.skip(layer):
                scores.append(float(metric(layers.model)))
        return torch.tensor(scores, dtype=torch.float64)

    @classmethod
    def cost(cls, layers: int) -> float:
        return (layers + 1) / 3

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        labels = dict(cls.columns)
        for result in results.values():
            for row in result.rows:
                labels |= {name: name.replace("_", " ") for name in row if name != "layer" and name not in labels}
        return draw_bars(cls.title, results, labels)
