"""Ctrl-C in front of a person: at once while nothing is lost by it, with a checkpoint once training goes on."""

import io
import os
import signal

import pytest
from rich.console import Console

from ablate.config import Experiment
from ablate.data.text import Topics
from ablate.training import foreground


@pytest.fixture
def run(store, tiny_settings):
    experiment = Experiment.from_mapping(tiny_settings)
    told = io.StringIO()

    def train():
        return foreground.train_in_foreground(experiment, Console(file=told, width=200))

    train.told = told
    return train


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_the_data_is_prepared_it_stops_at_once(run, monkeypatch, number):
    monkeypatch.setattr(Topics, "load", lambda self, cache: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_while_it_trains_it_ends_with_a_checkpoint_and_the_second_stops_at_once(run, monkeypatch):
    plain = foreground.Hooks

    def hooks(started, progress, decide, asked_to_stop, times=1):
        def stop(step, loss):
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

        return plain(started, stop, decide, asked_to_stop)

    monkeypatch.setattr(foreground, "Hooks", hooks)
    assert run().status == "interrupted"
    assert run.told.getvalue().count("Stopping: the update or the validation under way is finished") == 1
    monkeypatch.setattr(foreground, "Hooks", lambda *given: hooks(*given, times=2))
    with pytest.raises(KeyboardInterrupt):
        run()
