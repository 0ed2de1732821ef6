"""The record of a sweep: its trials, their results, and the trials that the budget still allows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ablate.config.formatting import count_noun, join_words
from ablate.sweeps.runs import CHALLENGE, FINISHED, FRESH, SEARCH, SELECTION, TUNING, Run, Runs
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import choose_candidate

if TYPE_CHECKING:
    from pandas import DataFrame

COSTS = {  # of a trial -> the fact of its run
    "flops_per_update": "ablate.flops_per_update",
    "flops_before": "ablate.flops_before",
    "state_bytes": "ablate.state_bytes",
    "peak_memory_bytes": "ablate.peak_memory_bytes",
    "seconds_per_update": "ablate.seconds_per_update",
    "company": "ablate.company",
}
_FIRST = ("sweep", "phase", "arm", "trial", "seed", "status", "ending", "value")
_LAST = ("updates", "items", "seconds", "run_id", "reason")


SETTING = "setting "
"""How the name of an input begins that is a setting."""


@dataclass(frozen=True)
class SweepRecord:
    """A sweep, as read from the storage."""

    name: str
    generation: int
    spec: Sweep
    runs: Runs
    """All of its runs, each by its last attempt: of one stage after the other, arm by arm."""
    parents: dict[str, str] = field(default_factory=dict)
    """Arm -> its parent run in MLflow."""
    validation_items: int | None = None
    """Sequences or images of the smallest validation set, or held-out pairs; None if unknown."""
    score_items: dict[str, int] = field(default_factory=dict)
    """Score on a downstream task -> its questions, of the scores that the objective is or is a mean of."""
    chosen: dict[str, int] = field(default_factory=dict)
    """Arm -> the number of its settings that are tested on fresh seeds, once they are chosen."""
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
    """The inputs of its runs, such as data -> SHA-256 when the first of them read it, and `SETTING` and the path of
    each setting -> SHA-256 of its values, of which a file leaves most out."""
    initial_loss: float | None = None
    """The loss of the uniform distribution, in nats; None if unknown."""
    deleted: list[str] = field(default_factory=list)
    """Its studies that were deleted from the storage."""
    memo: dict[Hashable, Any] = field(init=False, repr=False, compare=False, default_factory=dict)
    """Values that were computed from it (`compute_once`)."""

    def __repr__(self) -> str:
        """Return one line, for a notebook: the whole would be screens of trials."""
        arms, runs = count_noun(len(self.spec.own_arms), "arm"), count_noun(len(self.runs), "run")
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

    @property
    def arms(self) -> list[str]:
        """Its arms; for a sweep that tests a grid, each arm at each point."""
        return list(self.spec.all_arms)

    @property
    def trivial_loss(self) -> float | None:
        """The validation loss of a predictor that ignores the inputs, in nats (`Corpus.measure_trivial_loss`); the
        largest if arms have different data, None if unknown."""
        return self.runs.trivial_loss

    @property
    def is_tested(self) -> bool:
        """Whether chosen settings are trained on fresh seeds."""
        return self.spec.confirm.most_seeds > 0

    def search(self, arm: str) -> Runs:
        """Return the runs of the search of `arm`."""
        return self.runs.select(arm, SEARCH)

    def tuned(self, arm: str) -> Runs:
        """Return the runs of the search of `arm`, and those beyond its ranges."""
        return self.runs.select(arm, TUNING)

    def fresh(self, arm: str) -> Runs:
        """Return the runs of the chosen settings of `arm` on fresh seeds; not those of settings that were chosen
        before."""
        return self.runs.select(arm, FRESH, number=self.chosen.get(arm))

    def best(self, arm: str) -> Run | None:
        """Return the completed run of the search of `arm`, or beyond its ranges, with the best objective."""
        return self.tuned(arm).find_best(self.spec.objective.direction)

    def is_stuck(self, run: Run) -> bool:
        """Return whether a run ended without learning."""
        outcome = self.runs.find_outcome(run)
        return outcome is not None and outcome.ending == "stuck"

    def settled(self, arm: str) -> Run | None:
        """Return the run that represents `arm`: the first with the settings that are tested, otherwise its best; for
        an arm without a search, the best of its fresh seeds."""
        tried = self.runs.select(arm, (*TUNING, CHALLENGE))
        tested = tried.select(number=self.chosen[arm]) if arm in self.chosen else ()
        return tested[0] if tested else self.best(arm) or self.fresh(arm).find_best(self.spec.objective.direction)

    def find_settings(self, arm: str) -> dict[str, Any]:
        """Return the settings of `arm` that are tested on fresh seeds, once they are chosen, or those of its best run:
        dotted path -> value. For an arm at a point of a grid, those of the point."""
        settled = self.settled(arm)
        return dict(self.spec.cells[arm].point if arm in self.spec.cells else settled.params if settled else {})

    def list_candidates(self, arm: str) -> list[tuple[Run, Runs]]:
        """Return the settings of `arm` that were compared on selection seeds, each as its run of the search and its
        runs on selection seeds: first the settings that reached their end, then the better ones."""
        selected = self.runs.select(arm, SELECTION)
        sign = 1 if self.spec.objective.direction == "minimize" else -1
        trials = [run for run in self.tuned(arm) if run.number in {other.number for other in selected}]
        trials.sort(key=lambda run: (run.value is None, sign * (run.reached or 0.0), run.number))
        return [(run, selected.select(number=run.number)) for run in trials]

    def pick_point(self, arm: str) -> str:
        """Return the arm at the point of its grid at which it failed on the fewest seeds and, among those, has the best
        mean; an arm without a grid, or named with its point, is returned unchanged."""
        cells = [name for name, cell in self.spec.cells.items() if cell.arm == arm]
        return arm if arm in self.arms or not cells else self.pick_cell(cells)

    def pick_cell(self, cells: Sequence[str]) -> str:
        """Return the one of `cells`, points of a grid, that failed on the fewest seeds and, among those, has the best
        mean."""
        ended = {name: self.runs.outcomes(name, FRESH) for name in cells}
        known = [name for name, outcomes in ended.items() if outcomes] or list(cells)
        maximize = self.spec.objective.direction == "maximize"
        return known[choose_candidate([0.0] * len(known), [ended[name] for name in known], maximize)]

    def list_run_ids(self) -> set[str]:
        """Return the ids of all its runs in MLflow, those of the arms included."""
        return {*self.parents.values(), *(run.run_id for run in self.runs if run.run_id)}

    def target(self, arm: str | None = None) -> int:
        """Return the target number of finished runs of the search, of one arm or of all."""
        return sum(map(self.spec.trials, self.arms)) if arm is None else self.spec.trials(arm)

    def frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each run, whatever its stage."""
        return build_frame([self])


def count_remaining(spec: Sweep, arm: str, trials: Iterable[Run]) -> int:
    """Return the number of trials that `arm` may still start, in addition to the finished and the running among
    `trials`."""
    return max(0, spec.trials(arm) - sum(t.status in (*FINISHED, "running") for t in trials))


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

    phase: its stage. trial: the number of its settings in the search. ending: trained, stuck or diverged, of runs that
    ended. value: the objective. Then the metrics of the last validation, the level of each component (components.NAME),
    and each setting under its path.
    """
    spec = record.spec
    levels = spec.designed.cells if spec.designed else {}
    for run in record.runs:
        settings = {path: value for path, value in run.params.items() if path != "seed"}
        outcome = record.runs.find_outcome(run)
        yield {
            "sweep": record.title,
            "phase": run.stage,
            "arm": run.arm,
            "trial": None if run.arm in spec.cells else run.number,
            "seed": run.seed,
            "status": run.status,
            "ending": outcome.ending if outcome else None,
            "value": run.value,
            **run.metrics,
            **{f"components.{name}": level for name, level in levels.get(run.arm, {}).items()},
            **settings,
            "updates": run.step,
            "items": run.items,
            "seconds": run.seconds,
            "run_id": run.run_id,
            "reason": run.reason or None,
        }


P = ParamSpec("P")
T = TypeVar("T")


def compute_once(function: Callable[Concatenate[SweepRecord, P], T]) -> Callable[Concatenate[SweepRecord, P], T]:
    """Decorate a function of a record: its result is kept with the record, for each of its further arguments."""

    @wraps(function)
    def look_up(record: SweepRecord, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function.__module__, function.__qualname__, args, *kwargs.items())
        if key not in record.memo:
            record.memo[key] = function(record, *args, **kwargs)
        found: T = record.memo[key]
        return found

    return look_up
