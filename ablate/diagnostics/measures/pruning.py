"""The increase of the loss of a model without one of its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ablate.config.lazy import torch
from ablate.diagnostics.measures.base import DEFAULT, Measurement, Options, Result, register
from ablate.diagnostics.measures.subject import Batch, Subject
from ablate.plots.layers import draw_bars

if TYPE_CHECKING:
    from ablate.plots.figure import Figure

S = TypeVar("S")


@register
class Pruning(Measurement):
    """The loss without layer l minus the loss of the whole model, in nats; for classifiers also the change of the
    accuracy, and the change of each of `Options.metrics` and of `Subject.score`. A layer is skipped in place: the
    others keep their index, placement and scale."""

    name = "pruning"
    title = "Effect of removing one layer"
    columns = {
        "loss_increase": "increase of the loss without the layer (nats)",
        "accuracy_change": "change of the accuracy without the layer (share of images)",
    }
    needs_targets = True
    needs_same_shape = True
    uses_scores = True

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
            scores = self._score_each(partial(metric, self.subject.layers.model))
            changes[f"{name}_change"] = torch.tensor(scores, dtype=torch.float64)
        if self.subject.score is not None:
            own = self._score_each(self.subject.score)
            changes |= {
                f"{name}_change": torch.tensor([each[name] for each in own], dtype=torch.float64) for name in own[0]
            }
        rows = [
            {"layer": layer, **{name: (values[layer] - values[0]).item() for name, values in changes.items()}}
            for layer in range(1, len(self.subject.layers) + 1)
        ]
        whole = {name.rpartition("_")[0]: values[0].item() for name, values in changes.items()}
        return Result(rows, {"whole": whole, "targets": int(count)})

    def _score_each(self, score: Callable[[], S]) -> list[S]:
        """Return the score of the whole model, then without each layer."""
        scores = [score()]
        for layer in range(len(self.subject.layers)):
            with self.subject.layers.skip(layer):
                scores.append(score())
        return scores

    @classmethod
    def cost(cls, layers: int) -> float:
        return (layers + 1) / 3

    @classmethod
    def describe_columns(cls, results: Iterable[Result]) -> Mapping[str, str]:
        """Return the columns -> their descriptions, including the columns of benchmarks, which only results know."""
        columns = dict.fromkeys(name for result in results for row in result.rows for name in row if name != "layer")
        return dict(cls.columns) | {name: name.replace("_", " ") for name in columns if name not in cls.columns}

    @classmethod
    def draw(cls, results: Mapping[str, Result]) -> Figure:
        return draw_bars(cls.name, cls.title, results, cls.describe_columns(results.values()))
