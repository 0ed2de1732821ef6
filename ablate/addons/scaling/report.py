"""The report of a ladder: its tables and sentences, as text, figures, JSON and in MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.addons.scaling.comparison import SizedArm, SizedPair
from ablate.addons.scaling.figures import draw_differences, draw_losses
from ablate.addons.scaling.fits import FORM, Curve
from ablate.addons.scaling.ladder import Ladder
from ablate.addons.scaling.statements import list_caveats, state_findings
from ablate.addons.scaling.storing import store_report
from ablate.verdict.outcomes import LOSS

JSON, TEXT, LOSSES, DIFFERENCES = "ladder.json", "ladder.txt", "ladder.png", "ladder-differences.png"


@dataclass(frozen=True)
class LadderReport:
    """A ladder, and the paths of its files."""

    ladder: Ladder
    folder: Path
    """That of ladder.png, ladder-differences.png, ladder.json and ladder.txt."""
    mlflow: dict[str, str]
    """experiment_id and run_id; empty if the store did not accept the report."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        ladder, compared, target = self.ladder, self.ladder.compared, self.ladder.target
        rungs = zip(ladder.rungs, ladder.trivial_losses, strict=True)
        return {
            "ladder": ladder.name,
            "metric": LOSS,
            "baseline": ladder.baseline,
            "rungs": [
                {
                    "size": rung.size,
                    "sweep": rung.spec.name,
                    "parameters": rung.parameters,
                    "items": rung.items,
                    "trivial_loss": trivial,
                }
                for rung, trivial in rungs
            ],
            "losses": {name: arm.losses for name, arm in compared.arms.items()},
            "failures": {name: _list_failures(arm) for name, arm in compared.arms.items()},
            "curves": {
                name: _describe_curve(arm.curve, target) for name, arm in compared.arms.items() if arm.curve is not None
            },
            "differences": {name: _describe_pair(ladder, pair) for name, pair in compared.pairs.items()},
            "comparisons": compared.family,
            "extrapolate": {"size": target[0], "parameters": target[1]} if target else None,
            "verdict": state_findings(ladder),
            "folder": str(self.folder),
            "mlflow": self.mlflow,
            "notes": [*list_caveats(ladder), *self.notes],
        }


def _list_failures(arm: SizedArm) -> dict[str, Any]:
    """Return the failures of each size, and the trend."""
    return {
        "sizes": [asdict(share) if share else None for share in arm.failures],
        "trend_p": arm.failure_trend.p,
        "level": arm.failure_level,
    }


def _describe_curve(curve: Curve, target: tuple[str, int] | None) -> dict[str, Any]:
    """Return the curve, and its value at the size to extrapolate to; None if the curve is not valid there."""
    return {
        "form": FORM,
        "coefficients": [float(value) for value in curve.coefficients[0]],
        "unit": curve.sizes[0],
        "has_floor": curve.has_floor,
        "extrapolated": asdict(curve.at(target[1])) if target and curve.reaches(target[1]) else None,
    }


def _describe_pair(ladder: Ladder, pair: SizedPair) -> dict[str, Any]:
    """Return the measured differences, those of the curves, the trend and the prediction of the largest size."""
    gap, target = pair.gap, ladder.target
    return {
        "measured": [{**asdict(versus), "interval": versus.interval} for versus in pair.measured],
        "fitted": [asdict(gap.at(rung.parameters)) for rung in ladder.rungs] if gap else None,
        "trend": {**asdict(pair.trend), "verdict": pair.trend.word} if pair.trend else None,
        "prediction": asdict(pair.prediction) if pair.prediction else None,
        "extrapolated": asdict(gap.at(target[1])) if gap and target and gap.reaches(target[1]) else None,
    }


def report_ladder(ladder: Ladder, to_text: Callable[[LadderReport], str]) -> LadderReport:
    """Write the figures, ladder.json and ladder.txt (what `to_text` returns) into `reports/NAME` of the store, and to
    the run "report" of the MLflow experiment of that name; an MLflow store that fails is noted. Raises StoreError if
    the folder cannot be written."""
    report = LadderReport(ladder, tracking.open_folder(f"reports/{ladder.name}"), {})
    figures = {LOSSES: draw_losses(ladder), DIFFERENCES: draw_differences(ladder)}

    def list_texts(report: LadderReport) -> dict[str, str]:
        return {JSON: json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n", TEXT: to_text(report)}

    return store_report(ladder.name, report, figures, list_texts)
