"""The time of an update: of updates that are those of a run, as few as are asked for."""

import itertools
import json
import math
import time
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer
from norms.cases import PROFILED

from ablate import tracking
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.training import timing
from ablate.training.loaders import Loaders
from ablate.training.module import TrainingModule
from ablate.training.trainer import BARE, quiet_lightning

LINES = [json.dumps({"text": f"{number} " + "some words " * (number % 7)}) for number in range(80)]


def fit_by_lightning(model, experiment, corpus, updates):
    """Train `model` by Lightning's Trainer."""
    quiet_lightning()
    trainer = Trainer(
        max_steps=updates,
        accelerator="cpu",
        devices=1,
        precision=experiment.trainer.precision,
        accumulate_grad_batches=experiment.trainer.accumulate,
        gradient_clip_val=experiment.trainer.gradient_clip_val,
        limit_val_batches=0,
        **BARE,
    )
    trainer.fit(TrainingModule(experiment, corpus, model=model), Loaders(experiment, corpus))


CASES = {
    "plain": {},
    "admin": PROFILED["llama"],
    "clipped": {"trainer.gradient_clip_val": 0.01},
    "accumulated": {"trainer.accumulate": 2, "trainer.gradient_clip_val": 0.01},
    "autocast": {"trainer.precision": "bf16-mixed"},
    "bfloat16": {"trainer.precision": "bf16-true"},
    "padded": {"data.kind": "text", "data.layout": "documents", "trainer.accumulate": 2},
    "images": {},
    "images in bfloat16": {"trainer.precision": "bf16-true"},
}


@pytest.mark.parametrize("case", CASES)
def test_the_updates_that_are_timed_are_those_of_lightning(tiny_settings, vit_settings, store, tmp_path, case):
    base, settings = vit_settings if "images" in case else tiny_settings, CASES[case]
    if case == "padded":
        (tmp_path / "lines.jsonl").write_text("\n".join(LINES))
        base = {**base, "data": {"seq_len": 32}}
        settings = {**settings, "data.files": str(tmp_path / "lines.jsonl")}
    experiment = Experiment.from_mapping(base, {"trainer.precision": "32-true", "optimizer.lr": 0.01, **settings})
    corpus = experiment.data.load(tracking.cache_folder())
    assert corpus.padded == (case == "padded")
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(experiment.model.build(experiment.norm, experiment.init, corpus.classes, corpus.shape))
    ours, theirs = models
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    for _ in itertools.islice(timing.train(ours, experiment, corpus, experiment.trainer.precision), 3):
        pass
    fit_by_lightning(theirs, experiment, corpus, 3)
    weights, expected = ours.state_dict(), theirs.state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert not all(torch.equal(weights[name].float(), before[name].float()) for name in before)


def test_the_fastest_update_counts_and_no_more_are_made_than_asked_for(store, tiny_settings, monkeypatch):
    made, times = [], iter([0.0, 5.0, 7.0, 10.0])  # the first is slow: all is new to it
    training = timing.train

    def count(*args):
        for update in training(*args):
            made.append(update)
            yield update

    monkeypatch.setattr(timing, "train", count)
    monkeypatch.setattr(timing, "_read_clock", lambda *_: next(times))
    monkeypatch.setattr(ranks, "count_cores", lambda: 0)  # so many of the 512 processes are started
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.accumulate": 2, "trainer.num_workers": 512})
    corpus = experiment.data.load(tracking.cache_folder())
    assert timing.time_update(experiment, corpus, updates=3, seconds=60.0) == (2.0, 3.0)
    assert len(made) == 3


def test_a_slow_machine_times_what_fits(store, tiny_settings):
    made = iter(range(100))
    ends = timing._time_updates((None for _ in made), torch.device("cpu"), time.perf_counter, updates=100, seconds=0.0)
    assert 0 <= ends[0] == ends[1] < math.inf
    assert next(made) == 1


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
    timing._time_updates(iter([None]), torch.device("cuda", 0), time.perf_counter, updates=1, seconds=60.0)
    assert len(waits) == 2
