"""The numbers of best learning rates over sizes, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ablate.addons.scaling.transfer.optimum import Optimum
from ablate.addons.scaling.transfer.tables import state_findings
from ablate.addons.scaling.transfer.transfer import ArmTransfer, Cost, Transfer
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import LOSS


def describe_transfer(transfer: Transfer) -> dict[str, Any]:
    """Return plain values, for JSON."""
    chain = transfer.chain
    return {
        "transfer": chain.name,
        "metric": LOSS,
        "axis": chain.axis,
        "searched": chain.path,
        "sizes": [
            {
                "size": rung.size,
                "sweep": rung.spec.name,
                chain.axis: place,
                "items": rung.items,
                "rates": chain.list_rates(k),
            }
            for k, (rung, place) in enumerate(zip(chain.rungs, chain.places, strict=True))
        ],
        "arms": {arm: _describe_arm(one) for arm, one in transfer.arms.items()},
        "comparisons": transfer.family,
        "effect": transfer.effect,
        "saved_items": transfer.saved_items,
        "saved_operations": transfer.saved_operations,
        "verdict": state_findings(transfer),
    }


def _describe_arm(one: ArmTransfer) -> dict[str, Any]:
    """Return the best rates, the slope, the cost and all losses of an arm."""
    return {
        "verdict": one.word,
        "moves": one.moves,
        "best": [_describe_optimum(optimum) for optimum in one.optima],
        "slope": _describe_estimate(one.slope),
        "cost": _describe_cost(one.cost) if one.cost else None,
        "losses": [
            {str(seed): {f"{rate:g}": loss for rate, loss in curve.items()} for seed, curve in curves.items()}
            for curves in one.curves
        ],
    }


def _describe_cost(cost: Cost) -> dict[str, Any]:
    return {**asdict(cost.rates), "nats": _describe_estimate(cost.estimate), "fails_more": cost.fails_more}


def _describe_estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    return {**asdict(estimate), "interval": estimate.interval} if estimate else None


def _describe_optimum(optimum: Optimum) -> dict[str, Any]:
    return {
        "rate": optimum.rate,
        "interval": optimum.interval,
        "at_edge": optimum.at_edge,
        "seeds": {str(seed): 2**one.log_rate for seed, one in optimum.seeds.items()},
    }
