"""The numbers of a ladder, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ablate.addons.scaling.comparison import SizedArm, SizedPair
from ablate.addons.scaling.fits import FORM, Curve
from ablate.addons.scaling.ladder import Ladder
from ablate.addons.scaling.statements import state_findings
from ablate.verdict.outcomes import LOSS


def describe_ladder(ladder: Ladder) -> dict[str, Any]:
    """Return plain values, for JSON."""
    compared, target = ladder.compared, ladder.target
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
