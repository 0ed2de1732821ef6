"""`sweep:NAME/ARM`, the best run of an arm, wherever a run or a checkpoint is asked for."""

from __future__ import annotations

from ablate.config import Experiment
from ablate.errors import SweepError, did_you_mean
from ablate.sweeping.records import SweepRecord
from ablate.sweeping.stages import parsed
from ablate.sweeping.study import read_sweep


def resolved(given: str, storage: str | None = None) -> str:
    """The run that `sweep:NAME/ARM` names: that of the arm's best trial, which keeps its checkpoint. NAME@GENERATION
    names an earlier generation. What does not begin with `sweep:` stays as it is.

    Raises SweepError for an unknown sweep or arm, and where no trial of the arm is completed.
    """
    if (named := parsed(given)) is None:
        return given
    title, arm = named
    return best_run(given, read_sweep(title, storage), arm)


def best_run(given: str, sweep: SweepRecord, arm: str) -> str:
    """The run of the best trial of an arm of `sweep`, as `given` names it. Raises SweepError."""
    if arm not in sweep.trials:
        arms = list(sweep.trials)
        raise SweepError(f"{given}: {sweep.title} has the arms {', '.join(arms)}.{did_you_mean(arm, arms)}")
    best = sweep.best(arm)
    if best is None or best.run_id is None:
        raise SweepError(f"{given}: no trial of the arm is completed. Run the sweep, then use its best trial.")
    return best.run_id


def with_donor(experiment: Experiment, storage: str | None = None) -> Experiment:
    """`experiment` with the run in the place of a `sweep:NAME/ARM` that it starts from, so that what is written down of
    it says which weights those were. Raises SweepError."""
    start = experiment.warm_start
    if start is None or start.donor is None or (run := resolved(start.donor, storage)) == start.donor:
        return experiment
    return Experiment.from_mapping(experiment.to_tree(), {"warm_start.from": run})
