"""The time of an update on this machine, measured by making a few, without Lightning, whose import takes seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from ablate.data import Corpus
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.optim.optimizers import build_optimizer
from ablate.training import gradients
from ablate.training.data_workers import count_workers
from ablate.training.errors import translate_errors
from ablate.training.precision import choose_speed


def time_update(experiment: Experiment, corpus: Corpus, updates: int, seconds: float) -> tuple[float, float]:
    """Return the seconds of the fastest and of the slowest of `updates` updates of `experiment` but for the first,
    eager and on one device, which is a GPU where there is one; of fewer where they take more than `seconds`. On a CPU
    it is the time of the processor, which other processes hardly change. Raises DataError, OutOfMemory."""
    if isinstance(loaders := experiment.trainer.num_workers, int):  # starting hundreds takes longer than timing
        fewer = experiment.trainer.model_copy(update={"num_workers": min(loaders, ranks.count_cores())})
        experiment = experiment.model_copy(update={"trainer": fewer})
    here = "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    device = torch.device(here)  # which Lightning takes by itself
    # of processes that read data, this one knows just how long it waits for them
    alone = device.type == "cpu" and not count_workers(experiment.trainer, corpus.train)
    with translate_errors():
        model = experiment.build_model(corpus.classes, corpus.shape)
        training = train(model.to(device), experiment, corpus, choose_speed(experiment).precision)
        return _time_updates(training, device, time.thread_time if alone else time.perf_counter, updates, seconds)


def _time_updates(
    training: Iterator[None], device: torch.device, clock: Callable[[], float], updates: int, seconds: float
) -> tuple[float, float]:
    durations: list[float] = []
    begin, since = time.perf_counter(), _read_clock(device, clock)
    for _ in training:
        now = _read_clock(device, clock)
        durations.append(now - since)
        if len(durations) == updates or time.perf_counter() - begin > seconds:
            break
        since = now
    known = durations[1:] or durations  # all is new to the first
    return min(known), max(known)


def train(model: Model, experiment: Experiment, corpus: Corpus, precision: str) -> Iterator[None]:
    """Train `model` on its device, and yield after each update; without end.

    The updates are those that Lightning makes of `TrainingModule`, in the same arithmetic (`precision` is
    `trainer.precision`, decided). What is left out: compilation, curves, validations and the average of the weights.
    """
    config, device = experiment.trainer, next(model.parameters()).device
    if precision == "bf16-true":
        model.to(torch.bfloat16)
    optimizer = build_optimizer(experiment.optimizer, model)
    schedule = experiment.schedule.build(optimizer, config.max_steps)
    batches = read_batches(experiment, corpus, device, precision)
    experiment.norm.prepare(model, lambda: next(read_batches(experiment, corpus, device, precision))[0])
    task = experiment.task
    while True:
        counts: list[Tensor] = []
        positions = 0
        for _ in range(config.accumulate):
            inputs, targets = next(batches)
            if corpus.padded:
                counts.append(task.count_targets(inputs, targets))
                positions += task.count_positions(inputs, targets)
            with compute_in(precision, device):
                loss = task.compute_loss(model, inputs, targets)
            (loss / config.accumulate).backward()
        if counts:  # until here each loss is a sum over the number of positions: see TrainingModule
            gradients.scale(model.parameters(), gradients.weigh(positions, torch.stack(counts).sum()))
        if config.gradient_clip_val:
            gradients.clip(model.parameters(), config.gradient_clip_val)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        yield


def read_batches(
    experiment: Experiment, corpus: Corpus, device: torch.device, precision: str
) -> Iterator[tuple[Any, Any]]:
    """Yield the inputs and targets of the training batches, without end."""
    config = experiment.trainer
    workers = count_workers(config, corpus.train)
    loader = corpus.train.batches(config.batch_size // config.accumulate, experiment.seed, workers=workers)
    for batch in loader:
        inputs, targets = pytree.tree_map(lambda t: _narrow(t.to(device, non_blocking=True), precision), tuple(batch))
        yield inputs, targets


def _narrow(tensor: Tensor, precision: str) -> Tensor:
    return tensor.bfloat16() if precision == "bf16-true" and tensor.is_floating_point() else tensor


@contextlib.contextmanager
def compute_in(precision: str, device: torch.device) -> Iterator[None]:
    """Compute within in bfloat16 where `precision` says so, as Lightning does."""
    if precision == "bf16-true":
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
    elif precision == "bf16-mixed":
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            yield
    else:  # as it is: a switch that a compiled program saw would make it another program
        yield


def _read_clock(device: torch.device, clock: Callable[[], float]) -> float:
    """Return the time when all that was launched is done: a GPU computes behind our back."""
    if device.type != "cpu":
        torch.get_device_module(device.type).synchronize()
    return clock()
