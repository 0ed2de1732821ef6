"""The number and size of a run's validations: by default a tenth of its training compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablate.data import DataConfig
from ablate.experiment.trainer import TrainerConfig
from ablate.tasks import Task

SHARE = 0.1
"""Default cost of validation as a share of the cost of training."""
FORWARD = 1 / 3
"""Cost of validating on one sample relative to training on it: a forward pass without a backward pass. It is the same
for every model, so that all arms of a sweep are validated on the same samples."""
MOST_TIMES = 6
"""Validations of a run, where their number is chosen."""


@dataclass(frozen=True)
class Validation:
    """The number of a run's validations, and their size on each validation set."""

    interval: int
    """Updates between two validations."""
    times: int
    """Validations of the run, the last one after its last update."""
    samples: int | None
    """Sequences or images of each validation set, evenly spread over it; None: all."""
    trained: int
    """Samples that the run trains on."""
    passes: int
    """Forward passes for each sample: with the weights, and with their average if there is one."""
    unit: str
    """tokens or images."""
    sample: str
    """sequence or image."""
    per_sample: int
    """Tokens of a sequence, or 1 for an image."""
    is_least: bool
    """Whether `samples` is the default minimum."""

    def count_samples(self, size: int) -> int:
        """Return the number of validation samples from a set of `size`."""
        return size if self.samples is None else min(size, self.samples)

    def compute_share(self, sizes: Sequence[int]) -> float:
        """Return validation's share of the run's compute for sets with these numbers of samples, estimated by
        `FORWARD`."""
        validated = self.times * self.passes * sum(map(self.count_samples, sizes)) * FORWARD
        return validated / (validated + self.trained)

    def bound_share(self, sizes: Sequence[int | None]) -> float | None:
        """Return the largest possible `compute_share` for sets of which some have an unknown size (None); None if it
        has no bound."""
        counts = [self.samples if size is None else self.count_samples(size) for size in sizes]
        return None if None in counts else self.compute_share([count or 0 for count in counts])

    def describe(self, sizes: Sequence[int | None]) -> str:
        """Return the number and size of the validations and their share of the compute, for sets of these sizes (None:
        unknown)."""
        noun = f"{self.sample}s"
        when = "once, at the end," if self.times == 1 else f"{self.times} times, every {self.interval:,} updates,"
        text = f"{when} on {' and '.join(map(self._describe_set, sizes))} {noun}"
        share = self.bound_share(sizes)
        if share is None:
            return text
        if self.unit != noun:
            total = sum(self.samples or 0 if size is None else self.count_samples(size) for size in sizes)
            text += f" ({total * self.per_sample:,} {self.unit})"
        text += f": {'at most ' if None in sizes else ''}{share:.1%} of the run's compute"
        if self.is_least and share > SHARE / (1 + SHARE):
            text += f" ({share / (1 - share):.1%} of training; fewer samples would be too noisy: trainer.val_samples)"
        return text

    def _describe_set(self, size: int | None) -> str:
        if size is None:
            return "all" if self.samples is None else f"at most {self.samples:,}"
        count = self.count_samples(size)
        return f"all {size:,}" if count == size else f"{count:,} of {size:,}"


def plan_validation(trainer: TrainerConfig, data: DataConfig, task: Task, limited: bool = True) -> Validation:
    """Return how often a run is validated and on how much. What is not set is chosen so that all validations together
    cost at most `SHARE` of training, and each is on the `least_validation` of the task; without `limited` six are made,
    on all.

    It follows from the length of the run, its batch and its data alone, and neither from the seed nor from the model.
    """
    steps, trained = trainer.max_steps, trainer.max_steps * trainer.batch_size
    passes = 1 if trainer.ema_decay is None else 2
    budget = SHARE * trained / (FORWARD * passes * (1 + len(data.val_names)))  # samples of one set
    wanted = trainer.val_samples if isinstance(trainer.val_samples, int) else data.wanted_val_samples
    per_sample = task.count_items(data.input_shape)
    smallest = -(-task.least_validation // per_sample)
    interval, samples = trainer.val_check_interval, None
    if interval is None:
        whole = trainer.val_samples == "all" or not limited
        times = MOST_TIMES if whole else max(1, min(MOST_TIMES, int(budget // (wanted or smallest))))
        interval = -(-steps // times)
    interval = min(interval, steps)
    times = -(-steps // interval)
    is_chosen = limited and trainer.val_samples == "auto" and wanted is None
    if is_chosen:
        samples = max(smallest, int(budget // times))
    elif limited and isinstance(trainer.val_samples, int):
        samples = trainer.val_samples
    least = is_chosen and samples == smallest
    return Validation(interval, times, samples, trained, passes, task.unit, task.sample, per_sample, least)
