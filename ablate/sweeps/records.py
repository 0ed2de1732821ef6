"""The record of a sweep: its trials, their results, and the trials that the budget still allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ablate.config.formatting import count_noun, join_words
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import FINISHED, STATUSES, TrialRecord, pick_best, read_outcome
from ablate.verdict.selection import choose_candidate

if TYPE_CHECKING:
    from pandas import DataFrame

COSTS = {  # of a trial -> the fact of its run
    "flops_per_update": "ablate.flops_per_update",
    "flops_before": "ablate.flops_before",
    "state_bytes": "ablate.state_bytes",
    "peak_memory_bytes": "ablate.peak_memory_bytes",
}
UNLIMITED = 1_000_000  # trials
_FIRST = ("sweep", "phase", "arm", "trial", "seed", "status", "ending", "value")
_LAST = ("updates", "items", "seconds", "run_id", "reason")


@dataclass(frozen=True)
class Candidate:
    """One of the best settings of an arm's search, compared with the others on selection seeds."""

    trial: TrialRecord
    """The trial of the search."""
    runs: list[TrialRecord]
    """Runs of its settings on the selection seeds; `params` contains the seed."""


@dataclass(frozen=True)
class CrossedRuns:
    """The loser of a comparison at the winner's values of the searched parameters that both have, on fresh seeds."""

    loser: str
    """The arm, or the baseline."""
    params: dict[str, Any]
    """Its settings."""
    runs: list[TrialRecord]
    """`params` holds the seed."""


@dataclass(frozen=True)
class SweepRecord:
    """A sweep, as read from the storage."""

    name: str
    generation: int
    spec: Sweep
    trials: dict[str, list[TrialRecord]]
    """Arm -> its trials, each by its last attempt."""
    parents: dict[str, str] = field(default_factory=dict)
    """Arm -> its parent run in MLflow."""
    validation_items: int | None = None
    """Sequences or images of the smallest validation set, or held-out pairs; None if unknown."""
    score_items: dict[str, int] = field(default_factory=dict)
    """Score on a downstream task -> its questions, of the scores that the objective is or is a mean of."""
    confirmed: dict[str, list[TrialRecord]] = field(default_factory=dict)
    """Arm -> the runs of its chosen settings on fresh seeds; `params` contains the seed."""
    candidates: dict[str, list[Candidate]] = field(default_factory=dict)
    """Arm -> its candidates, the best of the search first; empty for an arm without a selection."""
    chosen: dict[str, TrialRecord] = field(default_factory=dict)
    """Arm -> the trial of the search whose settings are tested on fresh seeds, once it is chosen."""
    crossed: dict[str, CrossedRuns] = field(default_factory=dict)
    """Arm that is compared with the baseline -> the loser of the two at the winner's settings."""
    crossed_cells: dict[tuple[str, str], CrossedRuns] = field(default_factory=dict)
    """Of a factorial: (loser, winner) -> the first at the settings of the second."""
    looks: dict[str, Looks] = field(default_factory=dict)
    """Arm -> the numbers of fresh seeds at the looks at its verdict."""
    first_effects: dict[str, float | None] = field(default_factory=dict)
    """Arm -> `confirm.effect` at the first look at its seeds."""
    against: dict[str, list[str]] = field(default_factory=dict)
    """Arm -> the baselines that it was compared with on fresh seeds, the present one and earlier ones."""
    scored: int = 0
    """Number of comparisons of downstream scores, which share the error of the verdict; they are not in the storage."""
    plugins: dict[str, str] = field(default_factory=dict)
    """Plugin file -> its SHA-256 when the sweep was last continued."""
    inputs: dict[str, str] = field(default_factory=dict)
    """What its runs read besides their settings, such as data -> SHA-256 when the first of them did."""
    trial_items: dict[str, int] = field(default_factory=dict)
    """Arm -> tokens or images of one whole trial."""
    initial_loss: float | None = None
    """The loss of the uniform distribution, in nats; None if unknown."""
    trivial_loss: float | None = None
    """The validation loss of a predictor that ignores the inputs, in nats (`Corpus.measure_trivial_loss`); the largest
    if arms have different data, None if unknown."""

    deleted: list[str] = field(default_factory=list)
    """Its studies that were deleted from the storage."""

    def __repr__(self) -> str:
        """Return one line, for a notebook: the whole would be screens of trials."""
        arms, runs = count_noun(len(self.spec.own_arms), "arm"), count_noun(len(self.list_runs()), "run")
        return f"<SweepRecord {self.title}: {arms}, {runs}; .frame() lists them>"

    @property
    def title(self) -> str:
        """The name, with the generation unless it is the first; also the name of the MLflow experiment."""
        return format_title(self.name, self.generation)

    @property
    def full_name(self) -> str:
        """NAME@GENERATION, which names this one also after a later generation has begun."""
        return f"{self.name}@{self.generation}"

    def describe_deleted(self) -> str:
        """Return the sentence on studies that were deleted from the storage; '' if there are none."""
        if not self.deleted:
            return ""
        what = (
            f"The studies {join_words(self.deleted)} were" if self.deleted[1:] else f"The study {self.deleted[0]} was"
        )
        return (
            f"{what} deleted from the storage, with all results. What is left is not what the sweep found, and it "
            "cannot go on: put a copy of the storage back, or start from the beginning with ablate sweep --fresh (what "
            f"is left is kept as {self.full_name}, which ablate report still accepts)."
        )

    def frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each run: of the search, of candidates, on fresh seeds, and
        crossed."""
        return build_frame([self])

    def best(self, arm: str) -> TrialRecord | None:
        """Return the completed trial of `arm` with the best objective."""
        return pick_best(self.trials[arm], self.spec.objective.direction)

    def is_stuck(self, trial: TrialRecord) -> bool:
        """Return whether a trial ended without learning."""
        outcome = read_outcome(trial, self.trivial_loss)
        return outcome is not None and outcome.ending == "stuck"

    def settled(self, arm: str) -> TrialRecord | None:
        """Return the trial that represents `arm`: the one chosen for the test, otherwise the best of the search. For an
        arm at a point of a grid, which has no search, the best of its fresh seeds."""
        if self.spec.at_grid:
            return pick_best(self.confirmed.get(arm, ()), self.spec.objective.direction)
        return self.chosen.get(arm) or (self.best(arm) if arm in self.trials else None)

    def pick_point(self, arm: str) -> str:
        """Return the arm at the point of its grid at which it failed on the fewest seeds and, among those, has the best
        mean; an arm without a grid, or named with its point, is returned unchanged."""
        cells = [name for name, cell in self.spec.cells.items() if cell.arm == arm]
        return arm if arm in self.trials or not cells else self.pick_cell(cells)

    def pick_cell(self, cells: Sequence[str]) -> str:
        """Return the one of `cells`, points of a grid, that failed on the fewest seeds and, among those, has the best
        mean."""
        ended = {
            name: {
                run.params["seed"]: outcome
                for run in self.confirmed.get(name, ())
                if (outcome := read_outcome(run, self.trivial_loss))
            }
            for name in cells
        }
        known = [name for name, outcomes in ended.items() if outcomes] or list(cells)
        maximize = self.spec.objective.direction == "maximize"
        return known[choose_candidate([0.0] * len(known), [ended[name] for name in known], maximize)]

    def list_runs(self) -> list[TrialRecord]:
        """Return all runs: of the searches, of candidates on selection seeds, on fresh seeds, and crossed."""
        return [t for arm, trials in self.trials.items() for t in (*trials, *self.list_seed_runs(arm))]

    def list_run_ids(self) -> set[str]:
        """Return the ids of all its runs in MLflow, those of the arms included."""
        return {*self.parents.values(), *(run.run_id for run in self.list_runs() if run.run_id)}

    def counts(self, arm: str | None = None) -> dict[str, int]:
        """Return the number of trials by status, of one arm or of all."""
        statuses = [t.status for a, trials in self.trials.items() if arm in (None, a) for t in trials]
        return {status: statuses.count(status) for status in STATUSES}

    def count_failed(self) -> int:
        """Return the number of failed trials and failed runs on further seeds."""
        everything = [*self.trials.values(), *(self.list_seed_runs(arm) for arm in self.trials)]
        return sum(t.status == "failed" for trials in everything for t in trials)

    def list_crossed(self) -> list[CrossedRuns]:
        """Return all that was trained at another's settings."""
        return [*self.crossed.values(), *self.crossed_cells.values()]

    def list_seed_runs(self, arm: str) -> list[TrialRecord]:
        """Return the runs of `arm` besides its trials: on selection seeds, on fresh ones, and crossed."""
        selected = [run for candidate in self.candidates.get(arm, ()) for run in candidate.runs]
        crossed = [run for pair in self.list_crossed() if pair.loser == arm for run in pair.runs]
        return [*selected, *self.confirmed.get(arm, ()), *crossed]

    def target(self, arm: str | None = None) -> int:
        """Return the target number of finished trials, of one arm or of all; if tokens limit it, estimated from the
        trials so far."""
        return sum(self._count_target(a) for a in self.trials if arm in (None, a))

    def _count_target(self, arm: str) -> int:
        trials = self.trials[arm]
        if (most := self.spec.trials(arm)) is not None and not self.spec.budget.tokens:
            return most
        under_way = sum(t.status in (*FINISHED, "running") for t in trials)
        return under_way + count_remaining(self.spec, arm, trials, self.trial_items.get(arm, 1))


def count_remaining(spec: Sweep, arm: str, trials: Sequence[TrialRecord], trial_items: int) -> int:
    """Return the number of trials that `arm` may still start, in addition to the finished and the running among
    `trials`. A pruned or diverged trial counts with the tokens that it used, a running trial counts as a whole trial.
    `trial_items` are the tokens or images of one whole trial. The first trial may always start.
    """
    if spec.at_grid:  # nothing is searched
        return 0
    budget = spec.budget
    done = [t for t in trials if t.status in FINISHED]
    running = sum(t.status == "running" for t in trials)
    limits = [(spec.trials(arm) or UNLIMITED) - len(done) - running]
    if budget.tokens is not None:
        spent = sum(t.items for t in done) + running * trial_items
        limits.append((budget.tokens - spent) // max(1, trial_items))
    if not done and not running:
        limits = [max(1, limit) for limit in limits]
    return max(0, min(limits))


def format_title(name: str, generation: int) -> str:
    """Return the name of one generation of a sweep."""
    return name if generation == 1 else f"{name}@{generation}"


# ------------------------------------------------------------------ rows, for pandas and CSV


def build_frame(records: Iterable[SweepRecord]) -> DataFrame:
    """Return a pandas DataFrame with a row for each run of `records`, with the columns of `list_rows`; a whole number
    may be missing."""
    import pandas as pd

    rows = [row for record in records for row in list_rows(record)]
    others = list(dict.fromkeys(key for row in rows for key in row if key not in (*_FIRST, *_LAST)))
    return pd.DataFrame(rows, columns=[*_FIRST, *others, *_LAST]).convert_dtypes()


def list_rows(record: SweepRecord) -> Iterator[dict[str, Any]]:
    """Yield a row for each started run.

    phase: search, selection (candidates on selection seeds), confirmation (fresh seeds) or crossed (at another arm's
    settings). trial: of the search. ending: trained, stuck or diverged, of runs that ended. value: the objective. Then
    the metrics of the last validation, the level of each component (components.NAME), and each setting under its path.
    """
    arms = record.spec.all_arms
    fixed = {arm: arms[arm].settings.get("seed", record.spec.experiment.get("seed", 0)) for arm in record.trials}
    for arm, trials in record.trials.items():
        for trial in trials:
            yield _build_row(record, "search", trial, trial.number, {"seed": fixed[arm], **trial.params})
    for candidates in record.candidates.values():
        for candidate in candidates:
            for run in candidate.runs:
                settings = {**candidate.trial.params, **run.params}
                yield _build_row(record, "selection", run, candidate.trial.number, settings)
    for arm, runs in record.confirmed.items():
        settled = record.settled(arm)
        for run in runs:
            settings = {**(settled.params if settled else {}), **run.params}
            yield _build_row(record, "confirmation", run, settled.number if settled else None, settings)
    for crossed in record.list_crossed():
        for run in crossed.runs:
            yield _build_row(record, "crossed", run, None, {**crossed.params, **run.params})


def _build_row(
    record: SweepRecord, phase: str, run: TrialRecord, trial: int | None, params: dict[str, Any]
) -> dict[str, Any]:
    outcome = read_outcome(run, record.trivial_loss)
    point = record.spec.cells[run.arm].point if run.arm in record.spec.cells else {}
    settings = {**point, **{path: value for path, value in params.items() if path != "seed"}}
    cells = record.spec.designed.cells if record.spec.designed else {}
    return {
        "sweep": record.title,
        "phase": phase,
        "arm": run.arm,
        "trial": trial,
        "seed": params.get("seed"),
        "status": run.status,
        "ending": outcome.ending if outcome else None,
        "value": run.value,
        **run.metrics,
        **{f"components.{name}": level for name, level in cells.get(run.arm, {}).items()},
        **settings,
        "updates": run.step,
        "items": run.items,
        "seconds": run.seconds,
        "run_id": run.run_id,
        "reason": run.reason or None,
    }
