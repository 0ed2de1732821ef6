"""Training to a rung: a run that pauses before its decay, and a copy of it that decays and is validated.

The run itself goes on later from where it paused, bit for bit as if it had never stopped. Under a schedule without a
constant part it pauses at once, and the copy is a whole short run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ablate.config.lazy import postpone_collection
from ablate.data import Corpus
from ablate.experiment.tree import Experiment
from ablate.tracking.tracker import Tracker
from ablate.training.checkpoints import find_newest, remove
from ablate.training.precision import Speed
from ablate.training.procedures import BRANCHED, Earlier, Ended, Hooks, Procedure
from ablate.training.runs import run_folder

BRANCH = "branch"
"""The folder, in that of a run, of the copy of it that decays."""
AT_RUNG = "rung/"
"""Prefix of the names of the metrics of the copy."""


def build_rung(procedure: Procedure, updates: int) -> Procedure:
    """Return the procedure that trains to the rung at so many updates, instead of the whole run by `procedure`: it
    ends as paused, with the metrics of the copy."""
    return replace(procedure, load_run=lambda: partial(_run_to_rung, updates))


def _run_to_rung(
    updates: int, experiment: Experiment, corpus: Corpus, speed: Speed, tracker: Tracker, hooks: Hooks
) -> Ended:
    with postpone_collection():
        from ablate.training.fit import fit

    short = experiment.shorten(updates)
    shared = short.schedule.count_shared(updates)
    trunk = fit(experiment, corpus, speed, tracker, replace(hooks, pause_at=shared))
    if trunk.status != "paused":
        return trunk
    folder = run_folder(tracker.run_id)
    copy = folder / BRANCH
    newest = find_newest(copy) if copy.exists() else None
    if newest is None or newest[1].experiment["trainer.max_steps"] != updates:  # of an earlier rung
        remove(copy)
        newest = find_newest(folder) if shared else None
    copy.mkdir(exist_ok=True)
    own = Hooks(progress=hooks.progress, asked_to_stop=hooks.asked_to_stop)
    branch = fit(short, corpus, speed, tracker, own, (copy, *(newest or (None, Earlier()))))
    if branch.status != "interrupted":
        remove(copy)
    facts = {**trunk.facts, BRANCHED: branch.step - shared}
    if branch.status != "completed":
        return branch._replace(step=trunk.step, facts=facts)
    metrics = {f"{AT_RUNG}{name}": value for name, value in branch.metrics.items()}
    tracker.log_metrics(metrics, updates * experiment.items_per_update)
    return Ended("paused", f"paused at the rung of {updates} updates", trunk.step, branch.metrics, facts)
