"""Ctrl-C in front of a person: at once while nothing is lost by it, with a checkpoint once training goes on."""

import io
import os
import re
import signal
import threading
from dataclasses import replace

import pytest
from rich.console import Console

import ablate
from ablate import tracking
from ablate.cli.foreground import Foreground
from ablate.data.text.config import Topics
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Place


@pytest.fixture
def run(store, tiny_settings):
    experiment = Experiment.from_mapping(tiny_settings)
    told = io.StringIO()

    def train(run_id=None, progress=None):
        return train_in_foreground(experiment, Console(file=told, width=200), run_id, progress)

    train.told = told
    return train


def train_in_foreground(experiment, console, run_id=None, progress=None):
    """As the verb trains; `progress` is called with the number of updates and the loss."""
    with Foreground(experiment, console) as waiting:
        hooks = replace(waiting.hooks, progress=progress)
        result = ablate.train(experiment, Place(run_id=run_id), hooks, progress=console)
    assert waiting.explain(result) == (130 if result.status == "interrupted" else 0)
    return result


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_while_the_data_is_prepared_it_stops_at_once(run, monkeypatch, number):
    before = signal.getsignal(signal.SIGINT)  # in a background job of a shell it is ignored
    monkeypatch.setattr(Topics, "load", lambda self, cache: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run()
    assert signal.getsignal(signal.SIGINT) is before


def test_while_it_trains_it_ends_with_a_checkpoint_and_the_second_stops_at_once(run):
    def send(*numbers):
        return lambda step, loss: [os.kill(os.getpid(), number) for number in numbers]

    assert run(progress=send(signal.SIGINT)).status == "interrupted"
    told = run.told.getvalue()
    assert told.count("Stopping: finishing the current update or validation") == 1
    assert re.search(r"^Continue with: ablate train --resume \w+$", told, re.MULTILINE)
    closed = [signal.SIGHUP, signal.SIGHUP]  # the shell and the kernel both send it when a terminal is closed
    assert run(progress=send(*closed)).status == "interrupted"
    with pytest.raises(KeyboardInterrupt):
        run(progress=send(signal.SIGINT, signal.SIGINT))


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
    result = train_in_foreground(Experiment.from_mapping(tiny_settings), Console(file=told, width=200))
    assert result.status == "interrupted"
    assert told.getvalue().count("Stopping: finishing the current update or validation") == 1


def test_at_80_columns_no_line_of_a_run_breaks_within_a_word(store, tiny_settings):
    told = io.StringIO()
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.max_steps": 2})
    train_in_foreground(experiment, Console(file=told, width=80, force_terminal=True, color_system=None))
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


def test_a_group_that_lost_a_rank_says_how_to_go_on_and_a_run_without_a_checkpoint_that_it_begins_again(run, store):
    def lost(step, loss):
        raise ranks.Lost("A rank of this group has ended.")

    with pytest.raises(ranks.Lost, match=r"ended\. Continue with: ablate train --resume \w+$") as caught:
        run(progress=lost)
    run_id = str(caught.value).split()[-1]
    assert run(run_id).run_id == run_id
    told = run.told.getvalue().splitlines()
    assert told.count("the run has no complete checkpoint and starts from the beginning") == 1
