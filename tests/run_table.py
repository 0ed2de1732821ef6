"""Tables of runs for tests: a part of one by arm, and records with other runs in a stage."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, SEARCH, STAGES, Run, Runs


def by_arm(record: SweepRecord, stage: str = SEARCH) -> dict[str, Runs]:
    """Arm -> its runs of a stage; of the search all arms, of other stages those that have some."""
    return {arm: runs for arm in record.arms if (runs := record.runs.select(arm, stage)) or stage == SEARCH}


def join(stages: Mapping[str, Mapping[str, Iterable[Run]]], trivial_loss: float | None = None) -> Runs:
    """A table of stage -> arm -> runs, of which each gets the stage."""
    rows = [replace(run, stage=s) for s in STAGES for runs in stages.get(s, {}).values() for run in runs]
    return Runs(tuple(rows), trivial_loss)


def put(record: SweepRecord, trials=None, confirmed=None, trivial_loss=..., **more) -> SweepRecord:
    """The record with other runs of the search (arm -> runs), on fresh seeds, or another trivial loss."""
    stages = {stage: by_arm(record, stage) for stage in STAGES}
    stages |= {stage: runs for stage, runs in ((SEARCH, trials), (FRESH, confirmed)) if runs is not None}
    known = record.trivial_loss if trivial_loss is ... else trivial_loss
    return replace(record, runs=join(stages, known), **more)


def counts(record: SweepRecord) -> dict[str, int]:
    """The runs of the search by status."""
    return record.runs.select(stage=SEARCH).count_statuses()
