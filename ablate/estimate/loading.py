"""The check that data is read as fast as the GPUs process it."""

from __future__ import annotations

import contextlib
import math
import time

from ablate.config.errors import DataError
from ablate.config.formatting import format_count
from ablate.data import BatchDataset, Corpus
from ablate.experiment.trainer import MOST_WORKERS
from ablate.experiment.tree import Experiment

_BATCHES, _SECONDS, _SAMPLES = 8, 2.0, 32
_rates: dict[str, float] = {}  # by the configuration of the data: the arms of a sweep share it


def measure_rate(data: BatchDataset, seed: int) -> float:
    """Return the number of samples per second that one process reads, measured on a few small batches after the first,
    which opens files, or on those that start within two seconds."""
    batches = iter(data.batches(_SAMPLES, seed))
    next(batches)
    begin = time.perf_counter()
    read, seconds = 0, 0.0
    while read < _BATCHES and seconds < _SECONDS:
        next(batches)
        read, seconds = read + 1, time.perf_counter() - begin
    return read * _SAMPLES / max(seconds, 1e-9)


def describe_loading(experiment: Experiment, corpus: Corpus, taken: float) -> str:
    """Return a sentence on how many processes must read the data for a GPU that processes so many items a second, and
    whether that many are configured; "" for data in memory, or data that cannot be read now."""
    if not corpus.train.count_workers(MOST_WORKERS):
        return ""
    key = experiment.data.model_dump_json()
    if key not in _rates:
        with contextlib.suppress(DataError):
            _rates[key] = measure_rate(corpus.train, experiment.seed) * experiment.task.count_items(corpus.shape)
    if key not in _rates:
        return ""
    rate, chosen, unit = _rates[key], experiment.trainer.num_workers, experiment.unit
    needed = math.ceil(taken / rate)
    most = corpus.train.count_workers(MOST_WORKERS if chosen == "auto" else max(1, chosen))
    text = (
        f"One process reads {format_count(rate)} {unit} a second here (measured on a few batches), and a GPU processes "
        f"{format_count(taken)} according to the plan, so each GPU needs {needed} such processes. "
    )
    if needed > most:
        text += (
            f"trainer.num_workers={chosen} starts at most {most}: loading will be the bottleneck, and the run takes "
            "longer."
        )
    elif chosen == "auto":
        text += "trainer.num_workers=auto starts one for each core but one."
    else:
        text += f"trainer.num_workers={chosen} is enough."
    return text
