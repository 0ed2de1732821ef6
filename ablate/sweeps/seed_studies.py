"""The studies that train the settings of one trial on several seeds: their names, and reading their results.

In addition to the study of an arm, SWEEP@GENERATION/ARM, there are `select-N` (the candidate that is trial N of its
search, on selection seeds), `confirm-N` (the chosen one, on fresh seeds) and `cross-N-M-WINNER` (trial N of the arm at
the values that trial M of the arm WINNER has of the searched parameters that both share, on fresh seeds).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ablate.sweeps.comparison import cross_params
from ablate.sweeps.runs import CROSSED, FRESH, SELECTION, Run
from ablate.sweeps.spec.sweep import Sweep

STUDIES = "studies"  # of the study of an arm: those that were made for the arm, and the searches of all arms
INPUTS = "inputs"  # of the study of an arm: what its runs read besides their settings -> SHA-256
CHOICE = "choice"  # of the study of an arm: the trial whose settings are tested, and the candidates that there were
LOOKS, PLANNED = "looks", "planned"  # of a confirmation: seeds at each look, and what was planned at the first
EFFECT, AGAINST = "effect", "against"  # of a confirmation: confirm.effect at the first look, and all baselines so far


@dataclass(frozen=True)
class StoredStudy:
    """A study, as read from the storage."""

    runs: list[Run]
    notes: Mapping[str, Any]
    """Its attributes."""


def name_selection(study: str, number: int) -> str:
    """Return the name of the study of a candidate of the arm of `study`."""
    return f"{study}/select-{number}"


def name_confirmation(study: str, number: int) -> str:
    """Return the name of the study that confirms the trial `chosen` of the arm of `study`."""
    return f"{study}/confirm-{number}"


def name_crossed(study: str, own: int, winner: str, other: int) -> str:
    """Return the name of the study of the arm of `study` at the values of another arm's chosen trial."""
    return f"{study}/cross-{own}-{other}-{winner}"


def label_run(study: str, number: int, params: Mapping[str, Any]) -> str:
    """Return the name of the run of trial `number` of `study`, in MLflow and on the screen."""
    arm, _, part = study.partition("/")[2].partition("/")
    kind, _, rest = part.partition("-")
    if not kind:
        return f"{arm} #{number}"
    middle = {"select": f" #{rest}", "cross": f" at settings of {rest.split('-', 2)[-1]}"}.get(kind, "")
    return f"{arm}{middle} seed {params['seed']}"


def read_choices(prefix: str, studies: Mapping[str, StoredStudy], spec: Sweep) -> dict[str, int]:
    """Return arm -> the number of its settings that are tested. At a point of a grid there is nothing to choose."""
    choices = {arm: studies[prefix + arm].notes.get(CHOICE) or {} for arm in spec.all_arms}
    return {arm: 0 if arm in spec.cells else one["trial"] for arm, one in choices.items() if one or arm in spec.cells}


def read_seed_runs(
    prefix: str, studies: Mapping[str, StoredStudy], chosen: Mapping[str, int], spec: Sweep
) -> Iterator[Run]:
    """Yield the runs of the `studies` (name -> study, all that begin with `prefix`) other than the searches."""
    searched = {arm: {run.number: run.params for run in studies[prefix + arm].runs} for arm in spec.all_arms}
    for arm, cell in spec.cells.items():
        searched[arm] = {0: dict(cell.point)}
    for stage, kind in ((SELECTION, "select"), (FRESH, "confirm"), (CROSSED, "cross")):
        for arm in spec.all_arms:
            for name, study in studies.items():
                own, _, rest = name.removeprefix(f"{prefix}{arm}/{kind}-").partition("-")
                if not name.startswith(f"{prefix}{arm}/{kind}-") or int(own) not in searched[arm]:
                    continue
                at = rest.partition("-")[2]
                if stage in (FRESH, CROSSED) and chosen.get(arm) != int(own):
                    continue
                params = searched[arm][int(own)]
                if at:
                    params = cross_params(spec, params, searched[at][int(rest.partition("-")[0])])
                for run in study.runs:
                    yield replace(run, number=int(own), stage=stage, params=params, seed=run.params["seed"], at=at)


def read_looks(prefix: str, studies: Mapping[str, StoredStudy], chosen: Mapping[str, int]) -> dict[str, StoredStudy]:
    """Return arm -> the study of its chosen settings on fresh seeds, whose notes tell of the looks at them."""
    names = {arm: f"{prefix}{arm}/confirm-{number}" for arm, number in chosen.items()}
    return {arm: studies[name] for arm, name in names.items() if name in studies}
