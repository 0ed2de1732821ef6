"""What a task is: the contract that the planner, training, sweeps and reports ask, and the registry of tasks.

A batch is a pair (inputs, targets), each a tensor or any nested structure of tensors that torch's pytree knows (tuples,
lists, dictionaries), whose tensors have the samples of the batch as their first dimension. What the model is called
with and what the loss takes apart is the task's own business. Torch is imported when a task computes something.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ablate.config.base import Kind
from ablate.config.errors import Problem
from ablate.config.lazy import LazyModule
from ablate.config.registry import Registry
from ablate.data import IGNORED, Corpus, DataConfig
from ablate.models import ModelConfig

if TYPE_CHECKING:
    import torch
    import torch.utils._pytree as pytree
    from matplotlib.figure import Figure
    from torch import Tensor
    from torchmetrics import MetricCollection

    from ablate.models import Model
else:
    torch = LazyModule("torch")
    pytree = LazyModule("torch.utils._pytree")


@dataclass(frozen=True)
class Metric:
    """A metric of a validation, called val/NAME."""

    name: str
    label: str = ""
    """Its unit on the axis of a figure, such as "share of images"."""
    unit: str = ""
    """Its unit in a sentence, such as "nats". Empty: the metric's full name."""
    maximize: bool = False
    """Whether more of it is better."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    """The least and the most that it can be."""
    counts_samples: bool = False
    """Whether it is a share of the samples of the validation set: it then has steps of one over their number."""
    further: bool = False
    """Whether it is measured on further validation sets as well, as val/SET/NAME."""


class Task(Kind):
    """What a model is trained to do. A subclass is one task; its fields are the task's own settings."""

    kind: str

    inputs: ClassVar[Literal["tokens", "images"]]
    """What a model is given: models and data of the same inputs go together."""
    unit: ClassVar[str]
    """What a rate or a count of the task is in: "tokens" or "images"."""
    sample: ClassVar[str]
    """The noun for one sample of a batch: "sequence" or "image"."""
    metrics: ClassVar[tuple[Metric, ...]]
    """The metrics of a validation, the loss (`Metric("loss")`) first."""
    objective: ClassVar[str] = "val/loss"
    """What a sweep compares that names no objective."""
    least_validation: ClassVar[int] = 256
    """Units that a validation is made on at least, where their number is chosen."""
    classifies: ClassVar[bool] = False
    """Whether each sample has one class, so that `ablate diagnose` counts right first guesses."""
    needs_head: ClassVar[bool] = False
    """Whether it gives the model a head of its own (`adapt`), which not every family takes."""
    learns_from: ClassVar[str] = ""
    """What its targets are, in the words of `ablate list tasks`."""

    # ------------------------------------------------------------------ what it is for

    def accepts(self, data: DataConfig) -> bool:
        """Return whether it can be learnt from the targets of `data`."""
        return data.default_task == self.kind

    def validate(self, model: ModelConfig, data: DataConfig) -> list[Problem]:  # type: ignore[override]
        """Return what is wrong with its fields, or between them, the `model` and the `data`; paths from the experiment
        down."""
        return []

    # ------------------------------------------------------------------ what a batch is

    def count_items(self, shape: Sequence[int]) -> int:
        """Return the units of one sample whose input has `shape`: its tokens, or 1 for an image."""
        return 1

    def build_batch(self, size: int, shape: tuple[int, ...], classes: int) -> tuple[Any, Any]:
        """Return (inputs, targets) of `size` samples, uninitialised: what a plan traces. `shape` is that of one
        input."""
        raise NotImplementedError

    def collate(self, samples: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
        """Return the batch of single samples (input, target): tensors of each place stacked, as torch's
        `default_collate` does. For datasets that hold samples (`ablate.data.Samples`); others collate themselves."""
        from torch.utils.data import default_collate

        inputs, targets = default_collate(list(samples))
        return inputs, targets

    def count_positions(self, inputs: Any, targets: Any) -> int:
        """Return how many targets a batch would have without padding, the same for all batches of as many samples: what
        `compute_loss` divides by."""
        return count_samples(inputs)

    def count_targets(self, inputs: Any, targets: Any) -> Tensor:
        """Return the number of targets that the loss is a sum over, padding left out: what means over several batches
        or ranks are weighed by."""
        device = pytree.tree_leaves(inputs)[0].device
        return torch.full((), self.count_positions(inputs, targets), device=device)  # on a GPU nothing waits for it

    # ------------------------------------------------------------------ model and loss

    def adapt(self, model: Model, classes: int, shape: tuple[int, ...]) -> None:
        """Give a new model of the family what the task needs besides, such as a head of its own
        (`Model.attach_head`, if `needs_head`)."""

    def count_passes(self, model: ModelConfig, shape: tuple[int, ...]) -> float:
        """Return how often the layers compute all tokens of one sample in a forward pass: 1, unless the task shows the
        model a sample more than once, or a part of it. FLOPs are multiplied by it."""
        return 1.0

    def read_inputs(self, model: ModelConfig, state: Mapping[str, Tensor], length: int) -> tuple[int, tuple[int, ...]]:
        """Return (classes, shape of one input) by the weights of a trained model; 0 classes where its output is none.
        `length`: tokens of an input, where the weights do not say."""
        return model.count_classes(state), model.input_shape(state, length)

    def compute_loss(self, model: Any, inputs: Any, targets: Any) -> Tensor:
        """Return the training loss of a batch, float32: the sum over its targets, over `count_positions`. The same
        function is trained, compiled and traced by the plan."""
        raise NotImplementedError

    def initial_loss(self, classes: int) -> float:
        """Return the loss of guessing evenly: a loss far above it has diverged."""
        return math.log(classes)

    def measure_trivial_loss(self, corpus: Corpus, model: ModelConfig) -> float | None:
        """Return the validation loss that needs no look at the inputs: a run of `model` that ends no better is stuck.
        None where that cannot be told."""
        return None

    # ------------------------------------------------------------------ validation

    def build_metrics(self, corpus: Corpus) -> MetricCollection | None:
        """Return the torchmetrics that a validation updates, each by the name of a metric; None: the loss alone."""
        return None

    def validate_batch(self, model: Any, inputs: Any, targets: Any, metrics: MetricCollection | None) -> Tensor:
        """Return the loss of a validation batch, as `compute_loss` does, and update `metrics` where they are given: on
        a further validation set there are none."""
        return self.compute_loss(model, inputs, targets)

    def run_blank(self, model: Any, inputs: Any) -> None:
        """Run `model` on one sample of zeros like those of the empty `inputs`: ranks that share its weights compute
        together, and one may have no samples left in the last batch of a validation."""
        model(pytree.tree_map(lambda tensor: tensor.new_zeros(1, *tensor.shape[1:]), inputs))

    def compute_metrics(
        self, loss: float, metrics: MetricCollection | None, bytes_per_token: float | None
    ) -> dict[str, float]:
        """Return the metrics of a validation set besides the loss, by name, from its mean `loss` and the `metrics` that
        its batches have updated. `bytes_per_token`: of text, where it is known."""
        return {} if metrics is None else {name: value.item() for name, value in metrics.compute().items()}

    def draw_predictions(self, model: Any, inputs: Any, targets: Any, corpus: Corpus) -> Figure | None:
        """Return a figure of what a trained model makes of a few validation samples, logged at the end of a run; None:
        there is none."""
        return None

    # ------------------------------------------------------------------ measurements

    def sum_losses(self, model: Any, forward: Any, inputs: Any, targets: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return (summed loss, right first guesses, number of targets) of a batch, for `ablate diagnose`; the guesses
        are 0 where there is no such thing. `forward` calls `model` on inputs of its type."""
        loss = self.compute_loss(model, inputs, targets).float() * self.count_positions(inputs, targets)
        count = self.count_targets(inputs, targets)
        return loss, torch.zeros_like(count), count


tasks: Registry[Task] = Registry("task", Task)


def count_samples(inputs: Any) -> int:
    """Return the samples of a batch, by the first dimension of the first tensor of its inputs."""
    return len(pytree.tree_leaves(inputs)[0])


def find_metric(name: str, task: str = "") -> Metric | None:
    """Return the metric of a validation called `name`, val/loss or val/SET/loss, of `task` or, where that is not known
    or has none of that name, of the first task that has; None of what is no metric of a validation."""
    if not name.startswith("val/"):
        return None
    last = name.rpartition("/")[2]
    order = [task] if task in tasks else []
    named = (metric for kind in [*order, *tasks] for metric in tasks[kind].metrics if metric.name == last)
    return next(named, None)


def has_numbers(tensor: Tensor) -> bool:
    """Return whether a tensor has values: a plan traces a step on tensors that have shapes alone."""
    return not tensor.is_meta and type(tensor).__name__ != "FakeTensor"


def count_unpadded(targets: Tensor) -> Tensor:
    """Return how many of `targets` are no padding."""
    return (targets != IGNORED).sum()
