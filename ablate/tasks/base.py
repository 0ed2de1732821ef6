"""The base class of tasks, which the planner, training, sweeps and reports use, and the registry of tasks.

A batch is a pair (inputs, targets), each a tensor or any nested structure of tensors that torch's pytree knows (tuples,
lists, dictionaries), whose tensors have the samples of the batch as their first dimension. The task alone decides what
the model is called with and what the loss reads. Torch is imported when a task computes something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ablate.config.base import Kind
from ablate.config.errors import Problem
from ablate.config.lazy import pytree, torch
from ablate.config.registry import Registry
from ablate.data import IGNORED, Corpus, DataConfig
from ablate.models import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import MetricCollection

    from ablate.models import Model


@dataclass(frozen=True)
class Metric:
    """A metric of a validation, called val/NAME."""

    name: str
    label: str = ""
    """Its unit on the axis of a figure, such as "share of images"."""
    unit: str = ""
    """Its unit in a sentence, such as "nats". Empty: the metric's full name."""
    maximize: bool = False
    """Whether a higher value is better."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """The smallest and the largest possible value."""
    counts_samples: bool = False
    """Whether it is a share of the validation samples: its resolution is then one over their number."""
    further: bool = False
    """Whether it is measured on further validation sets as well, as val/SET/NAME."""


class Task(Kind):
    """The task that a model is trained for. A subclass is one task; its fields are the task's settings."""

    kind: str

    inputs: ClassVar[Literal["tokens", "images"]]
    """The kind of input: models and data with the same kind fit together."""
    unit: ClassVar[str]
    """The unit of rates and counts: "tokens" or "images"."""
    sample: ClassVar[str]
    """The noun for one sample of a batch: "sequence" or "image"."""
    metrics: ClassVar[tuple[Metric, ...]]
    """The metrics of a validation, the loss (`Metric("loss")`) first."""
    objective: ClassVar[str] = "val/loss"
    """The objective of a sweep that names none."""
    least_validation: ClassVar[int] = 256
    """The smallest number of units for a validation whose size is chosen automatically."""
    classifies: ClassVar[bool] = False
    """Whether each sample has one class, so that `ablate diagnose` counts correct predictions."""
    needs_head: ClassVar[bool] = False
    """Whether it attaches its own head to the model (`adapt`), which not every family accepts."""
    learns_from: ClassVar[str] = ""
    """Its targets, as `ablate list tasks` shows them."""

    # ------------------------------------------------------------------ what it is for

    def accepts(self, data: DataConfig) -> bool:
        """Return whether the task can be learned from the targets of `data`."""
        return data.default_task == self.kind

    def validate(self, model: ModelConfig, data: DataConfig) -> list[Problem]:  # type: ignore[override]
        """Return the problems of its fields, alone or with `model` and `data`; paths start at the experiment."""
        return []

    # ------------------------------------------------------------------ what a batch is

    def count_items(self, shape: Sequence[int]) -> int:
        """Return the units of one sample whose input has `shape`: its tokens, or 1 for an image."""
        return 1

    def build_batch(self, size: int, shape: tuple[int, ...], classes: int) -> tuple[Any, Any]:
        """Return uninitialised (inputs, targets) of `size` samples, which a plan traces. `shape` is that of one
        input."""
        raise NotImplementedError

    def collate(self, samples: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
        """Return the batch of single samples (input, target): tensors of each place stacked, as torch's
        `default_collate` does. For datasets that hold samples (`ablate.data.Samples`); others collate themselves."""
        from torch.utils.data import default_collate

        inputs, targets = default_collate(list(samples))
        return inputs, targets

    def count_positions(self, inputs: Any, targets: Any) -> int:
        """Return the number of targets that a batch would have without padding, the same for all batches of equal size:
        `compute_loss` divides by it."""
        return count_samples(inputs)

    def count_targets(self, inputs: Any, targets: Any) -> Tensor:
        """Return the number of targets that the loss sums over, without padding: the weight of the batch in means over
        batches or ranks."""
        device = pytree.tree_leaves(inputs)[0].device
        return torch.full((), self.count_positions(inputs, targets), device=device)  # on a GPU nothing waits for it

    # ------------------------------------------------------------------ model and loss

    def adapt(self, model: Model, classes: int, shape: tuple[int, ...]) -> None:
        """Add to a new model what the task needs, such as its own head
        (`Model.attach_head`, if `needs_head`)."""

    def count_passes(self, model: ModelConfig, shape: tuple[int, ...]) -> float:
        """Return how often the layers compute all tokens of one sample in a forward pass: 1, unless the task passes a
        sample several times, or only a part of it. FLOPs are multiplied by this number."""
        return 1.0

    def read_inputs(self, model: ModelConfig, state: Mapping[str, Tensor], length: int) -> tuple[int, tuple[int, ...]]:
        """Return (classes, shape of one input), read from the weights of a trained model; 0 classes if its output is
        not a class. `length`: tokens of an input, if the weights do not determine it."""
        return model.count_classes(state), model.input_shape(state, length)

    def compute_loss(self, model: Any, inputs: Any, targets: Any) -> Tensor:
        """Return the training loss of a batch, float32: the sum over its targets, divided by `count_positions`. The
        same function is trained, compiled and traced by the plan."""
        raise NotImplementedError

    def initial_loss(self, classes: int) -> float:
        """Return the loss of the uniform distribution: a run with a loss far above it has diverged."""
        return math.log(classes)

    def measure_trivial_loss(self, corpus: Corpus, model: ModelConfig) -> float | None:
        """Return the validation loss of a predictor that ignores the inputs: a run of `model` that ends no better is
        stuck. None if it is unknown."""
        return None

    # ------------------------------------------------------------------ validation

    def build_metrics(self, corpus: Corpus) -> MetricCollection | None:
        """Return the torchmetrics that a validation updates, by the names of the metrics; None: only the loss is
        measured."""
        return None

    def validate_batch(self, model: Any, inputs: Any, targets: Any, metrics: MetricCollection | None) -> Tensor:
        """Return the loss of a validation batch, as `compute_loss` does, and update `metrics` unless it is None, as for
        a further validation set."""
        return self.compute_loss(model, inputs, targets)

    def run_blank(self, model: Any, inputs: Any) -> None:
        """Run `model` on one sample of zeros like those of the empty `inputs`: ranks that share its weights must
        compute together, and one may have no samples in the last batch of a validation."""
        model(pytree.tree_map(lambda tensor: tensor.new_zeros(1, *tensor.shape[1:]), inputs))

    def compute_metrics(
        self, loss: float, metrics: MetricCollection | None, bytes_per_token: float | None
    ) -> dict[str, float]:
        """Return the further metrics of a validation set by name, computed from its mean `loss` and the `metrics` that
        its batches have updated. `bytes_per_token`: of text, if known."""
        return {} if metrics is None else {name: value.item() for name, value in metrics.compute().items()}

    # ------------------------------------------------------------------ measurements

    def sum_losses(self, model: Any, forward: Any, inputs: Any, targets: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return (summed loss, correct predictions, number of targets) of a batch, for `ablate diagnose`; 0 correct
        predictions if the task has no classes. `forward` calls `model` on inputs of its type."""
        loss = self.compute_loss(model, inputs, targets).float() * self.count_positions(inputs, targets)
        count = self.count_targets(inputs, targets)
        return loss, torch.zeros_like(count), count


tasks: Registry[Task] = Registry("task", Task)


def count_samples(inputs: Any) -> int:
    """Return the samples of a batch, by the first dimension of the first tensor of its inputs."""
    return len(pytree.tree_leaves(inputs)[0])


def find_metric(name: str, task: str = "") -> Metric | None:
    """Return the metric of a validation called `name`, val/loss or val/SET/loss, of `task` or, where that is not known
    or has none of that name, of the first task that has one; None for a name that is not a metric of a validation."""
    if not name.startswith("val/"):
        return None
    last = name.rpartition("/")[2]
    order = [task] if task in tasks else []
    named = (metric for kind in [*order, *tasks] for metric in tasks[kind].metrics if metric.name == last)
    return next(named, None)


def has_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor has values: a plan traces a step with tensors that have only shapes."""
    return not tensor.is_meta and type(tensor).__name__ != "FakeTensor"


def count_unpadded(targets: Tensor) -> Tensor:
    """Return the number of `targets` that are not padding."""
    return (targets != IGNORED).sum()
