"""Ctrl-C in front of a person: at once while nothing is lost by it, with a checkpoint once training goes on."""

import io
import os
import signal
import threading

import pytest
from rich.console import Console

from ablate.cli import foreground
from ablate.data.text.config import Topics
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment


@pytest.fixture
def run(store, tiny_settings):
    experiment = Experiment.from_mapping(tiny_settings)
    told = io.StringIO()

    def train(run_id=None):
        return foreground.train_in_foreground(experiment, Console(file=told, width=200), run_id)

    train.told = told
    return train


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_the_data_is_prepared_it_stops_at_once(run, monkeypatch, number):
    before = signal.getsignal(signal.SIGINT)  # in a background job of a shell it is ignored
    monkeypatch.setattr(Topics, "load", lambda self, cache: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert signal.getsignal(signal.SIGINT) is before


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


class Interrupted(io.StringIO):
    """Ctrl-C comes while the line of a validation is written; as of a file, what writes cannot be entered again."""

    writer = None

    def flush(self):
        if self.writer == threading.get_ident():
            raise RuntimeError("reentrant call inside flush")
        self.writer = threading.get_ident()
        if "update 4/12" in self.getvalue() and "Stopping" not in self.getvalue():
            os.kill(os.getpid(), signal.SIGINT)
        self.writer = None


def test_ctrl_c_while_a_line_is_written_stops_as_at_any_other_time(store, tiny_settings):
    told = Interrupted()
    result = foreground.train_in_foreground(Experiment.from_mapping(tiny_settings), Console(file=told, width=200))
    assert result.status == "interrupted"
    assert told.getvalue().count("Stopping: the update or the validation under way is finished") == 1


def test_a_group_that_lost_a_rank_says_how_to_go_on_and_a_run_without_a_checkpoint_that_it_begins_again(
    run, store, monkeypatch
):
    plain = foreground.Hooks

    def lost(step, loss):
        raise ranks.Lost("A rank of this group is gone.")

    with monkeypatch.context() as patch:
        patch.setattr(foreground, "Hooks", lambda started, *given: plain(started, lost, *given[1:]))
        with pytest.raises(ranks.Lost, match=r"gone\. Go on with: ablate train --resume \w+$") as caught:
            run()
    run_id = str(caught.value).split()[-1]
    assert run(run_id).run_id == run_id
    told = run.told.getvalue().splitlines()
    assert told.count("there is no whole checkpoint of it: it begins again") == 1
