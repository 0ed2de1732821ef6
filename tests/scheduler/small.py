"""A sweep of two arms and two trials each, of a model that trains in a second."""

from rich.console import Console
from run_table import by_arm

from ablate.scheduler import run
from ablate.scheduler.preparation import begin_session
from ablate.scheduler.storage import read_sweep, storage_url
from ablate.scheduler.worker import SPOILED, STOPPED, Worker

SILENT = Console(quiet=True)


def spec_tree(settings, **more):
    return {
        "name": "small",
        "experiment": settings,
        "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.5, 1.0]}}},
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "budget": {"trials": 2},
        **more,
    }


def run_sweep(sweep, workers=2, **more):
    """By workers in processes of their own."""
    return run.sweep(sweep, workers=workers, console=SILENT, **more)


def run_here(sweep, storage=None, fresh=False):
    """By one worker in this process; the sweep's record. Raises KeyboardInterrupt if that was asked to stop."""
    url = storage_url(storage)
    queue, _ = begin_session(sweep, url, fresh, 1)
    title = queue.full_name
    while (end := Worker(title, url).run()) == SPOILED:
        pass
    if end == STOPPED:
        raise KeyboardInterrupt
    run.close(queue)
    return read_sweep(title, url)


def stop_when(monkeypatch, condition):
    """Has each worker of this process asked to stop at the first update at which `condition(task)` holds."""
    call = Worker._call_train

    def note(self, task, lease):
        self.now = task
        return call(self, task, lease)

    monkeypatch.setattr(Worker, "_call_train", note)
    monkeypatch.setattr(Worker, "_must_stop", lambda self: hasattr(self, "now") and condition(self.now))


def table(record):
    """Everything that a report is made of, without times and identities."""
    return {arm: [(t.status, t.params, t.value, t.curve) for t in trials] for arm, trials in by_arm(record).items()}
