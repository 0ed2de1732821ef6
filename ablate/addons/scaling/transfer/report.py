"""The report of a transfer: table and sentences as text, page and JSON, the figure, and all of them in MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.addons.scaling.storing import store_report
from ablate.addons.scaling.transfer.figure import draw_transfer
from ablate.addons.scaling.transfer.optimum import Optimum
from ablate.addons.scaling.transfer.tables import list_caveats, state_findings, tabulate_losses, tabulate_optima
from ablate.addons.scaling.transfer.transfer import ArmTransfer, Cost, Transfer
from ablate.reports.page import build_environment, embed_charts, embed_image
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import LOSS

FIGURE, JSON, TEXT, PAGE = "transfer.png", "transfer.json", "transfer.txt", "transfer.html"


@dataclass(frozen=True)
class TransferReport:
    """A transfer, and the paths of its files."""

    transfer: Transfer
    folder: Path
    """That of transfer.png, transfer.html, transfer.json and transfer.txt."""
    mlflow: dict[str, str]
    """experiment_id and run_id; empty if the store did not accept the report."""
    notes: tuple[str, ...] = ()

    @property
    def remarks(self) -> list[str]:
        """What the runs do not show, and what happened to the report."""
        return [*list_caveats(self.transfer), *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        transfer, chain = self.transfer, self.transfer.chain
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
            "folder": str(self.folder),
            "mlflow": self.mlflow,
            "notes": self.remarks,
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


def report_transfer(transfer: Transfer, to_text: Callable[[TransferReport], str]) -> TransferReport:
    """Write the figure, transfer.html, transfer.json and transfer.txt (what `to_text` returns) into `reports/NAME` of
    the store, and to the run "report" of the MLflow experiment of that name; an MLflow store that fails is noted.
    Raises StoreError if the folder cannot be written."""
    report = TransferReport(transfer, tracking.open_folder(f"reports/{transfer.chain.name}"), {})

    def list_texts(report: TransferReport) -> dict[str, str]:
        return {
            JSON: json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n",
            TEXT: to_text(report),
            PAGE: render_page(report),
        }

    return store_report(transfer.chain.name, report, {FIGURE: draw_transfer(transfer)}, list_texts)


def render_page(report: TransferReport) -> str:
    """Return the report as one HTML page, the figure included."""
    transfer = report.transfer
    return (
        build_environment()
        .get_template("transfer.html.j2")
        .render(
            title=transfer.chain.name,
            question=f"does the best learning rate hold over {transfer.chain.axis}?"
            if len(transfer.chain.rungs) > 1
            else "the best learning rate",
            findings=state_findings(transfer),
            tables=[tabulate_optima(transfer), *tabulate_losses(transfer)],
            image=embed_image(report.folder / FIGURE),
            remarks=report.remarks,
            **embed_charts([]),
        )
    )
