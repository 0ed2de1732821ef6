"""Ctrl-C in front of a person: at once while nothing is lost by it, with a checkpoint once training goes on."""

import io
import os
import re
import signal
import threading

import pytest
from rich.console import Console

from ablate import tracking
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_the_data_is_prepared_it_stops_at_once(run, monkeypatch, number):
    before = signal.getsignal(signal.SIGINT)  # in a background job of a shell it is ignored
    monkeypatch.setattr(Topics, "load", lambda self, cache: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert signal.getsignal(signal.SIGINT) is before


def test_while_it_trains_it_ends_with_a_checkpoint_and_the_second_stops_at_once(run, monkeypatch):
    plain = foreground.Hooks

    def hooks(started, progress, decide, asked_to_stop, sent=(signal.SIGINT,)):
        def stop(step, loss):
            for number in sent:
                os.kill(os.getpid(), number)

        return plain(started, stop, decide, asked_to_stop)

    monkeypatch.setattr(foreground, "Hooks", hooks)
    assert run().status == "interrupted"
    assert run.told.getvalue().count("Stopping: finishing the current update or validation") == 1
    closed = [signal.SIGHUP, signal.SIGHUP]  # the shell and the kernel both send it when a terminal is closed
    monkeypatch.setattr(foreground, "Hooks", lambda *given: hooks(*given, sent=closed))
    assert run().status == "interrupted"
    monkeypatch.setattr(foreground, "Hooks", lambda *given: hooks(*given, sent=[signal.SIGINT] * 2))
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
    assert told.getvalue().count("Stopping: finishing the current update or validation") == 1


def test_at_80_columns_no_line_of_a_run_breaks_within_a_word(store, tiny_settings):
    told = io.StringIO()
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.max_steps": 2})
    foreground.train_in_foreground(experiment, Console(file=told, width=80, force_terminal=True, color_system=None))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", told.getvalue())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", text)]
    assert max(map(len, lines)) <= 80
    sizes = experiment.data.load(tracking.cache_folder()).count_validation_items()
    validated = f"validation {experiment.validation.describe(sizes)}"
    assert validated in " ".join(text.split())


def test_in_a_log_file_every_line_is_whole_and_can_be_used(run):
    assert run().status == "completed"
    head, model, data, validation, arithmetic, *lines = run.told.getvalue().splitlines()
    assert re.fullmatch(r"run \w{32}:", head)
    names = [line.split()[0] for line in (model, data, validation, arithmetic)]
    assert names == ["model", "data", "validation", "arithmetic"]
    assert re.fullmatch(r"update 1/12: loss \d\.\d{4}", lines[0])
    assert [line.split(":")[0] for line in lines[1:4]] == ["update 4/12", "update 8/12", "update 12/12"]
    assert all("val/loss" in line for line in lines[1:4])
    assert lines[4].startswith("completed after")
    assert lines[5].startswith('In MLflow: run "pre lr=0.001"')
    assert len(lines) == 6


def test_a_group_that_lost_a_rank_says_how_to_go_on_and_a_run_without_a_checkpoint_that_it_begins_again(
    run, store, monkeypatch
):
    plain = foreground.Hooks

    def lost(step, loss):
        raise ranks.Lost("A rank of this group has ended.")

    with monkeypatch.context() as patch:
        patch.setattr(foreground, "Hooks", lambda started, *given: plain(started, lost, *given[1:]))
        with pytest.raises(ranks.Lost, match=r"ended\. Continue with: ablate train --resume \w+$") as caught:
            run()
    run_id = str(caught.value).split()[-1]
    assert run(run_id).run_id == run_id
    told = run.told.getvalue().splitlines()
    assert told.count("the run has no complete checkpoint and starts from the beginning") == 1
