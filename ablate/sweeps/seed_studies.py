"""The studies that train the settings of one trial on several seeds: their names, and reading their results.

In addition to the study of an arm, SWEEP@GENERATION/ARM, there are `select-N` (the candidate that is trial N of its
search, on selection seeds), `confirm-N` (the chosen one, on fresh seeds) and `cross-N-M-WINNER` (trial N of the arm at
the values that trial M of the arm WINNER has of the searched parameters that both share, on fresh seeds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablate.sweeps.comparison import cross_params, list_seeds_run
from ablate.sweeps.records import Candidate, CrossedRuns
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import TrialRecord

STUDIES = "studies"  # of the study of an arm: those that were made for the arm, and the searches of all arms
INPUTS = "inputs"  # of the study of an arm: what its runs read besides their settings -> SHA-256
CHOICE = "choice"  # of the study of an arm: the trial whose settings are tested, and the candidates that there were
LOOKS, PLANNED = "looks", "planned"  # of a confirmation: seeds at each look, and what was planned at the first
EFFECT, AGAINST = "effect", "against"  # of a confirmation: confirm.effect at the first look, and all baselines so far


@dataclass(frozen=True)
class StoredStudy:
    """A study, as read from the storage."""

    trials: list[TrialRecord]
    notes: Mapping[str, Any]
    """Its attributes."""


@dataclass(frozen=True)
class AfterSearch:
    """The results after the searches of a sweep, with the fields of `SweepRecord`."""

    candidates: dict[str, list[Candidate]]
    chosen: dict[str, TrialRecord]
    confirmed: dict[str, list[TrialRecord]]
    crossed: dict[str, CrossedRuns]
    crossed_cells: dict[tuple[str, str], CrossedRuns]
    looks: dict[str, Looks]
    first_effects: dict[str, float | None]
    against: dict[str, list[str]]


def name_selection(study: str, candidate: TrialRecord) -> str:
    """Return the name of the study of a candidate of the arm of `study`."""
    return f"{study}/select-{candidate.number}"


def name_confirmation(study: str, chosen: TrialRecord) -> str:
    """Return the name of the study that confirms the trial `chosen` of the arm of `study`."""
    return f"{study}/confirm-{chosen.number}"


def name_crossed(study: str, chosen: TrialRecord, winner: TrialRecord) -> str:
    """Return the name of the study of the arm of `study` at the values of another arm's chosen trial."""
    return f"{study}/cross-{chosen.number}-{winner.number}-{winner.arm}"


def label_run(study: str, number: int, params: Mapping[str, Any]) -> str:
    """Return the name of the run of trial `number` of `study`, in MLflow and on the screen."""
    arm, _, part = study.partition("/")[2].partition("/")
    kind, _, rest = part.partition("-")
    if not kind:
        return f"{arm} #{number}"
    middle = {"select": f" #{rest}", "cross": f" at settings of {rest.split('-', 2)[-1]}"}.get(kind, "")
    return f"{arm}{middle} seed {params['seed']}"


def read_after_search(
    prefix: str, studies: Mapping[str, StoredStudy], trials: Mapping[str, list[TrialRecord]], spec: Sweep
) -> AfterSearch:
    """Return the results of the `studies` (name -> study, all that begin with `prefix`) other than the searches
    (`trials` of each arm)."""
    candidates, chosen, confirmed = {}, {}, {}
    first_effects: dict[str, float | None] = {}
    against: dict[str, list[str]] = {}
    for arm, searched in trials.items():
        full = prefix + arm
        choice = studies[full].notes.get(CHOICE) or {}
        trial = next((trial for trial in searched if trial.number == choice.get("trial")), None)
        if spec.at_grid:  # there is nothing to choose, and what is tested has the settings of the point
            trial = stand_for_point(arm)
        among = [t for t in searched if choice.get("candidates") is None or t.number in choice["candidates"]]
        selected = [Candidate(t, studies[n].trials) for t in among if (n := name_selection(full, t)) in studies]
        sign = 1 if spec.objective.direction == "minimize" else -1
        if selected:  # those that came to their end first, then the better first
            candidates[arm] = sorted(
                selected, key=lambda c: (c.trial.value is None, sign * (c.trial.reached or 0.0), c.trial.number)
            )
        if trial is not None:
            chosen[arm] = trial
            if (name := name_confirmation(full, trial)) in studies:
                confirmed[arm], notes = studies[name].trials, studies[name].notes
                if EFFECT in notes:
                    first_effects[arm] = notes[EFFECT]
                against[arm] = list(notes.get(AGAINST, []))
    return AfterSearch(
        candidates,
        chosen,
        confirmed,
        _read_crossed(prefix, studies, chosen, spec),
        _read_crossed_cells(prefix, studies, chosen, spec),
        _read_looks(prefix, studies, chosen),
        first_effects,
        against,
    )


def stand_for_point(arm: str) -> TrialRecord:
    """Return what stands for the search of an arm at a point of a grid, which has none: a trial that is never run."""
    return TrialRecord(arm, 0, "waiting", {}, None, {}, {}, 0, None, None, "")


def _read_crossed(
    prefix: str, studies: Mapping[str, StoredStudy], chosen: Mapping[str, TrialRecord], spec: Sweep
) -> dict[str, CrossedRuns]:
    """Return the crossed runs of each pair. Where either of the two was the loser at some look, those that are
    further."""
    crossed: dict[str, CrossedRuns] = {}
    for arm in chosen:
        baseline = spec.baselines[arm]
        if arm == baseline or baseline not in chosen:
            continue
        pairs = []
        for loser, winner in ((arm, baseline), (baseline, arm)):
            study = studies.get(name_crossed(prefix + loser, chosen[loser], chosen[winner]))
            if study is not None:
                params = cross_params(spec, chosen[loser].params, chosen[winner].params)
                pairs.append(CrossedRuns(loser, params, study.trials))
        if pairs:
            crossed[arm] = max(pairs, key=lambda runs: len(list_seeds_run(runs.runs)))
    return crossed


def _read_crossed_cells(
    prefix: str, studies: Mapping[str, StoredStudy], chosen: Mapping[str, TrialRecord], spec: Sweep
) -> dict[tuple[str, str], CrossedRuns]:
    """Return the crossed runs of the cells of a factorial."""
    pairs = {pair for contrast in spec.contrasts.values() for pair in contrast.list_pairs()}
    crossed = {}
    for loser, winner in sorted(pairs):
        if loser not in chosen or winner not in chosen:
            continue
        study = studies.get(name_crossed(prefix + loser, chosen[loser], chosen[winner]))
        if study is not None:
            params = cross_params(spec, chosen[loser].params, chosen[winner].params)
            crossed[loser, winner] = CrossedRuns(loser, params, study.trials)
    return crossed


def _read_looks(prefix: str, studies: Mapping[str, StoredStudy], chosen: Mapping[str, TrialRecord]) -> dict[str, Looks]:
    """Return the looks at each arm."""
    looks = {}
    for arm, trial in chosen.items():
        study = studies.get(name_confirmation(prefix + arm, trial))
        if study and (sizes := study.notes.get(LOOKS)):
            looks[arm] = Looks(tuple(sizes), int(study.notes[PLANNED]))
    return looks
