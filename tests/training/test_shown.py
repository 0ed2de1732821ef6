"""What `ablate.train` shows: lines where there is no terminal, nothing where it is silenced."""

import logging
import sys

import pytest

import ablate
from ablate.config.logs import log_where_unheard, open_console
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place


@pytest.fixture
def experiment(tiny_settings):
    return Experiment.from_mapping(tiny_settings)


def test_a_run_is_shown_in_lines_and_its_hooks_are_called(store, experiment, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as the kernel of a notebook has it
    calls = []
    hooks = Hooks(
        started=lambda run_id, *_: calls.append(run_id),
        progress=lambda step, loss: calls.append(step),
        decide=lambda step, metrics: step < 8,
    )
    result = ablate.train(experiment, Place("mine", "tried"), hooks)
    assert (result.status, result.step) == ("pruned", 8)
    assert calls == [result.run_id, 1, 2, 4, 6, 8]
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\r" not in output
    lines = output.splitlines()
    assert lines[0] == "training llama, norm pre, on topics: 12 updates of 128 tokens, learning rate 0.001, seed 0"
    assert lines[1] == f"run {result.run_id}:"
    assert [line for line in lines if line.startswith("update 1/12: loss 5.")]
    assert [line for line in lines if line.startswith("update 8/12: val/loss 5.")]
    assert lines[-2].startswith("pruned: pruned at update 8 after ")
    assert lines[-1] == 'In MLflow: run "tried" of the experiment "mine". Open it with: ablate ui'


def test_a_run_that_goes_on_says_so(store, experiment, capsys):
    part = ablate.train(experiment, hooks=Hooks(asked_to_stop=lambda: True))
    assert capsys.readouterr().out.splitlines()[-1].startswith("interrupted")
    ablate.train(experiment, Place(run_id=part.run_id))
    output = capsys.readouterr().out
    assert output.startswith(f"training run {part.run_id}, resumed, on topics")
    assert f"resumed at update {part.step}/12\n" in output


def test_a_run_can_be_silenced(store, experiment, capsys):
    assert ablate.train(experiment, progress=False).status == "completed"
    assert capsys.readouterr() == ("", "")


def test_messages_go_to_stderr_unless_the_caller_has_handlers(capsys, monkeypatch):
    logger, root = logging.getLogger("ablate.any"), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    with log_where_unheard():
        logger.info("to stderr")
    logger.info("to nobody")
    assert capsys.readouterr().err == "to stderr\n"
    monkeypatch.setattr(root, "handlers", [logging.NullHandler()])
    with log_where_unheard():
        logger.info("to the caller")
    assert capsys.readouterr().err == ""


def test_a_terminal_is_one_and_a_silent_console_prints_nothing(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert open_console().is_terminal
    open_console(shown=False).print("anything")
    assert capsys.readouterr().out == ""
