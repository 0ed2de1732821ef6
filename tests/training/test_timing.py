"""The time of an update: measured by training, on as few updates as are asked for."""

import math
from types import SimpleNamespace

import pytest
import torch

from ablate import tracking
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.training.callbacks import Stop
from ablate.training.timing import Stopwatch, time_update


def test_an_update_is_timed_with_its_accumulated_batches(store, tiny_settings, monkeypatch):
    seen = []
    of_batch = Stopwatch.on_train_batch_end

    def count(self, trainer, module, *args):
        try:
            of_batch(self, trainer, module, *args)
        finally:
            seen.append((trainer.global_step, len(self.durations)))

    monkeypatch.setattr(Stopwatch, "on_train_batch_end", count)
    monkeypatch.setattr(ranks, "count_cores", lambda: 0)  # so many of the 512 processes are started
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.accumulate": 2, "trainer.num_workers": 512})
    seconds = time_update(experiment, experiment.data.load(tracking.cache_folder()), updates=3, seconds=60.0)
    assert 0 < seconds < math.inf
    assert seen == [(0, 0), (1, 1), (1, 1), (2, 2), (2, 2), (3, 3)]


def test_a_slow_machine_times_what_fits():
    stopwatch = Stopwatch(updates=100, seconds=0.0)
    trainer = SimpleNamespace(global_step=1, strategy=SimpleNamespace(root_device=torch.device("cpu")))
    stopwatch.on_train_start(trainer, None)
    with pytest.raises(Stop, match="timed"):
        stopwatch.on_train_batch_end(trainer, None, None, None, 0)
    assert len(stopwatch.durations) == 1


def test_an_update_on_a_gpu_ends_when_the_gpu_has_made_it(monkeypatch):
    """The time at which all was launched is no time of an update."""
    waits = []
    monkeypatch.setattr(
        torch, "get_device_module", {"cuda": SimpleNamespace(synchronize=lambda: waits.append(1))}.__getitem__
    )
    trainer = SimpleNamespace(global_step=1, strategy=SimpleNamespace(root_device=torch.device("cuda", 0)))
    stopwatch = Stopwatch(updates=100, seconds=60.0)
    stopwatch.on_train_start(trainer, None)
    stopwatch.on_train_batch_end(trainer, None, None, None, 0)
    assert len(waits) == 2
    assert len(stopwatch.durations) == 1
