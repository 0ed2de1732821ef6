"""What the sizes of a study show together: whether a learning rate transfers, or how the arms differ as models grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.addons.scaling import figures, report, rungs, statements, tables
from ablate.addons.scaling.ladder import fit_ladder
from ablate.addons.scaling.transfer import report as transfer_report
from ablate.addons.scaling.transfer import tables as transfer_tables
from ablate.addons.scaling.transfer.figure import draw_transfer
from ablate.addons.scaling.transfer.sizes import arrange_sizes
from ablate.addons.scaling.transfer.transfer import fit_transfer
from ablate.config.errors import ConfigError, SweepError
from ablate.reports.plain_values import to_plain
from ablate.sweeps.records import SweepRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class OverSizes:
    """What several sizes show."""

    kind: str
    """transfer or ladder."""
    values: dict[str, Any]
    """All numbers, as JSON gives them back."""
    findings: list[str]
    caveats: list[str]
    tables: list[tables.Table]
    draw: Callable[[], dict[str, Figure]]
    """Returns file -> figure."""


def compare_sizes(name: str, records: Mapping[str, SweepRecord]) -> OverSizes | None:
    """Return what the `records` of several sizes (size -> record) show together; None where they are no ladder and
    search no learning rate, or too little of them has ended."""
    sizes = {size: record for size, record in records.items() if not record.spec.is_spot_check}
    for compare in (_compare_rates, _compare_arms):
        try:
            return compare(name, sizes)
        except (ConfigError, SweepError):
            continue
    return None


def _compare_rates(name: str, records: Mapping[str, SweepRecord]) -> OverSizes:
    chain = arrange_sizes({size: record.spec for size, record in records.items()}, name)
    transfer = fit_transfer(chain, [records[rung.size] for rung in chain.rungs])
    return OverSizes(
        "transfer",
        _keep_values(transfer_report.TransferReport(transfer, Path(), {}).to_dict()),
        transfer_tables.state_findings(transfer),
        transfer_tables.list_caveats(transfer),
        [transfer_tables.tabulate_optima(transfer), *transfer_tables.tabulate_losses(transfer)],
        lambda: {transfer_report.FIGURE: draw_transfer(transfer)},
    )


def _compare_arms(name: str, records: Mapping[str, SweepRecord]) -> OverSizes:
    known = rungs.arrange_rungs([rungs.Rung.of(size, record.spec) for size, record in records.items()], name)
    ladder = fit_ladder(f"{name}-ladder", known, [records[rung.size] for rung in known])
    return OverSizes(
        "ladder",
        _keep_values(report.LadderReport(ladder, Path(), {}).to_dict()),
        statements.state_findings(ladder),
        statements.list_caveats(ladder),
        tables.tabulate(ladder),
        lambda: {report.LOSSES: figures.draw_losses(ladder), report.DIFFERENCES: figures.draw_differences(ladder)},
    )


def _keep_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return a report without its places on this machine."""
    plain: dict[str, Any] = to_plain({key: value for key, value in values.items() if key not in ("folder", "mlflow")})
    return plain
