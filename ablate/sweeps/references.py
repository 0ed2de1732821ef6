"""`sweep:NAME/ARM`, the best run of an arm, wherever a run or a checkpoint is asked for."""

from __future__ import annotations

from ablate.config.errors import SweepError, did_you_mean
from ablate.experiment.tree import Experiment
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.stages import named, parsed
from ablate.sweeps.storage import read_sweep


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


def with_donors(experiment: Experiment, storage: str | None = None) -> Experiment:
    """`experiment` with the runs in the place of each `sweep:NAME/ARM` that it starts from or is judged by, so that
    what is written down of it says which weights those were. Raises SweepError."""
    given = named(experiment)
    runs = {path: run for path, one in given.items() if (run := resolved(one, storage)) != one}
    return Experiment.from_mapping(experiment.to_tree(), runs) if runs else experiment
