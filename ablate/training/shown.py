"""Training that is shown while it goes: on a terminal, in a notebook, in a log file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ParamSpec

from ablate.config.formatting import format_duration
from ablate.config.logs import log_where_unheard, name_program, open_console, print_wrapped
from ablate.experiment.tree import Experiment
from ablate.training import train as training
from ablate.training.procedures import Earlier, Hooks, Place, Procedure, Result
from ablate.training.progress import RunProgress, describe_run
from ablate.training.runs import name_run

if TYPE_CHECKING:
    from rich.console import Console


P = ParamSpec("P")


def train(
    experiment: Experiment,
    place: Place | None = None,
    hooks: Hooks | None = None,
    procedure: Procedure | None = None,
    *,
    progress: bool | Console = True,
) -> Result:
    """Run `experiment`, tracked in MLflow, and return how it ended.

    A run that diverges, is pruned or is interrupted is a result; an error of the data or the store is raised as an
    AblateError. On rank 0 of a group (see `ablate.distributed`) all ranks train it together.

    Args:
        experiment: the configuration.
        place: the MLflow experiment, parent run, name and tags. With `run_id` the interrupted run of that id is resumed
            from its last checkpoint, with the numbers that it would have had.
        hooks: functions that are called while the run goes.
        procedure: how it is run; by default training by Lightning, or alignment where `experiment.align` is set.
        progress: whether stdout shows what is run, the update, loss, rate and time that is left, each validation and
            how the run ended: as a bar on a terminal, in lines now and then in a notebook, a file or a pipe. A console:
            the same there, by a caller that has said what is run.
    """
    if not isinstance(experiment, Experiment):
        text = "give an Experiment, such as ablate.Experiment.from_mapping({'norm': 'mix', 'optimizer.lr': 3e-3})"
        raise TypeError(f"{text}, not a {type(experiment).__name__}")
    place, hooks, procedure = place or Place(), hooks or Hooks(), procedure or training.choose_procedure(experiment)
    if progress is False:
        return training.train(experiment, place, hooks, procedure)
    display = RunDisplay(open_console() if progress is True else progress, experiment, place, procedure)
    if progress is True:
        display.say(describe_run(experiment, place.run_id))
    with log_where_unheard(), display.progress.show():
        result = training.train(experiment, place, display.add_to(hooks), procedure)
    display.show_end(result)
    return result


class RunDisplay:
    """Shows one run on `console`: its computation, progress, validations and end."""

    def __init__(self, console: Console, experiment: Experiment, place: Place, procedure: Procedure) -> None:
        self.console, self.experiment, self.place, self.procedure = console, experiment, place, procedure
        self.progress = RunProgress(console, experiment)

    def say(self, text: str) -> None:
        """Print lines that stay."""
        print_wrapped(self.console, text)

    def add_to(self, hooks: Hooks) -> Hooks:
        """Return `hooks` that also show their arguments, before they are called."""

        def decide(step: int, metrics: Mapping[str, float]) -> bool:
            self.show_validation(step, metrics)
            return hooks.decide is None or hooks.decide(step, metrics)

        return replace(
            hooks,
            started=_call_both(self.show_start, hooks.started),
            progress=_call_both(self.progress.advance, hooks.progress),
            decide=decide,
        )

    def show_start(self, run_id: str, text: str, before: Earlier) -> None:
        """Show that training begins: the run, the lines of `text` on it, and how far it got earlier."""
        self.say(f"run {run_id}:\n{text}")
        if before.updates:
            self.say(f"resumed at update {before.updates}/{self.experiment.trainer.max_steps}")
            self.progress.begin_at(before.updates)
        elif self.place.run_id and self.procedure.resumes:
            self.say("the run has no complete checkpoint and starts from the beginning")

    def show_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a validation after `step` updates."""
        values = ", ".join(f"{key} {value:.4f}" for key, value in metrics.items())
        self.say(f"update {step}/{self.experiment.trainer.max_steps}: {values}")

    def show_end(self, result: Result) -> None:
        """Show how the run ended and, unless it can go on, where it is."""
        reason = f": {result.reason}" if result.reason else ""
        self.say(f"{result.status}{reason} after {format_duration(result.seconds)}")
        if result.status != "interrupted":
            name = self.place.name or name_run(self.experiment)
            where = f'In MLflow: run "{name}" of the experiment "{self.place.experiment}"'
            self.say(f"{where}. Open it with: {name_program()} ui")


def _call_both(first: Callable[P, None], second: Callable[P, None] | None) -> Callable[P, None]:
    """Return a function that calls `first` and, if it is not None, `second`."""

    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        first(*args, **kwargs)
        if second is not None:
            second(*args, **kwargs)

    return call
