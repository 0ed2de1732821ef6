"""How a trial ended, as the storage and MLflow keep it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.sweeps.records import COSTS
from ablate.tracking.provenance import COMPARED
from ablate.training.procedures import Result

if TYPE_CHECKING:
    from optuna import Trial


@dataclass(frozen=True)
class Ending:
    """How a trial ended."""

    state: str
    """Optuna's: COMPLETE, PRUNED or FAIL."""
    status: str
    reason: str = ""
    value: float | None = None
    """The objective."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What else the storage keeps."""


def build_notes(trial: Trial, result: Result) -> dict[str, Any]:
    """Return what the storage keeps of a result, besides the objective."""
    seconds = trial.user_attrs.get("seconds_before", 0.0) + result.seconds
    return {
        "metrics": result.metrics,
        "step": result.step,
        "seconds": round(seconds, 3),
        "items_per_update": result.items_per_update,
        "facts": {key: str(result.facts[key]) for key in COMPARED if key in result.facts},
        **({"layers": result.layers} if result.layers else {}),
        "costs": {key: result.facts[name] for key, name in COSTS.items() if name in result.facts},
    }


def end_run(run_id: str | None, status: str, reason: str) -> None:
    """End the MLflow run of a trial whose process could not do so."""
    if run_id:
        tracking.Tracker(run_id).end(status, reason)
