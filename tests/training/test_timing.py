"""The time of an update."""

import itertools
import time
from types import SimpleNamespace

import torch

from ablate import tracking
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.training import timing
from ablate.training.loaders import Loaders


def test_the_fastest_update_counts_and_no_more_are_made_than_asked_for(store, tiny_settings, monkeypatch):
    workers, times = [], iter([0.0, 5.0, 7.0, 10.0])  # the first is slow: all is new to it
    monkeypatch.setattr(timing._Watch, "_read", lambda *_: next(times))
    monkeypatch.setattr(Loaders, "__init__", spy(Loaders.__init__, workers))
    monkeypatch.setattr(ranks, "count_cores", lambda: 0)  # so many of the 512 processes are started
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.accumulate": 2, "trainer.num_workers": 512})
    corpus = experiment.data.load(tracking.cache_folder())
    assert timing.time_update(experiment, corpus, updates=3, seconds=60.0) == (2.0, 3.0)
    assert next(times, None) is None
    assert workers == [0]


def spy(original, workers):
    def init(self, experiment, corpus):
        workers.append(experiment.trainer.num_workers)
        original(self, experiment, corpus)

    return init


def test_a_slow_machine_times_what_fits(store, tiny_settings, monkeypatch):
    times = iter([0.0, 5.0])
    monkeypatch.setattr(timing._Watch, "_read", lambda *_: next(times))
    experiment = Experiment.from_mapping(tiny_settings)
    corpus = experiment.data.load(tracking.cache_folder())
    assert timing.time_update(experiment, corpus, updates=100, seconds=0.0) == (5.0, 5.0)


def test_a_run_that_is_shorter_than_what_is_timed_is_timed_whole(store, tiny_settings):
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.max_steps": 2, "schedule.warmup_steps": 0})
    corpus = experiment.data.load(tracking.cache_folder())
    least, most = timing.time_update(experiment, corpus, updates=100, seconds=60.0)
    assert 0 < least == most


def test_what_other_processes_take_of_the_processor_is_no_time_of_an_update(store, tiny_settings, monkeypatch):
    """Beside other work an update waits, which the clock of the process does not count."""
    clock = itertools.count(0.0, 2.0)
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.precision": "32-true"})
    corpus = experiment.data.load(tracking.cache_folder())
    assert timing.time_update(experiment, corpus, updates=3, seconds=60.0) == (2.0, 2.0)


def test_an_update_on_a_gpu_ends_when_the_gpu_has_made_it(monkeypatch):
    """The time at which all was launched is no time of an update."""
    waits = []
    monkeypatch.setattr(
        torch, "get_device_module", {"cuda": SimpleNamespace(synchronize=lambda: waits.append(1))}.__getitem__
    )
    watch = timing._Watch(time.perf_counter, updates=1, seconds=60.0)
    watch._read(SimpleNamespace(device=torch.device("cuda", 0)))
    assert len(waits) == 1
