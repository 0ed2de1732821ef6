"""The tables of a ladder: losses, differences and failures against size."""

from __future__ import annotations

from ablate.addons.scaling.comparison import SizedArm
from ablate.addons.scaling.fits import Interval
from ablate.addons.scaling.ladder import Ladder
from ablate.config.formatting import format_count, format_number
from ablate.reports.section import Section, Table
from ablate.verdict.outcomes import LOSS
from ablate.verdict.statements import format_estimate


def tabulate(ladder: Ladder) -> list[Section]:
    """Return the tables."""
    return [_tabulate_losses(ladder), _tabulate_differences(ladder), _tabulate_failures(ladder)]


def _tabulate_losses(ladder: Ladder) -> Section:
    arms = ladder.compared.arms
    rows = []
    for k, rung in enumerate(ladder.rungs):
        cells = [_format_loss(arm, k) for arm in arms.values()]
        rows.append([rung.size, format_count(rung.parameters), format_count(rung.items), *cells])
    if ladder.target:
        name, parameters = ladder.target
        curves = [arm.curve for arm in arms.values()]
        cells = [format_interval(c.at(parameters)) if c and c.reaches(parameters) else "-" for c in curves]
        rows.append([f"{name}, by the curves", format_count(parameters), "", *cells])
    title = f"{LOSS} on the fresh seeds that trained, mean ± 95 % interval"
    return Section(title, Table.of_rows(["size", "parameters", "trained on", *arms], rows, numbers=True))


def _tabulate_differences(ladder: Ladder) -> Section:
    pairs, baseline = ladder.compared.pairs, ladder.baseline
    header = ["size"]
    for arm in pairs:
        header += [f"{arm}, difference to {baseline}", f"{arm}, difference to {baseline}, by the curves"]
    rows = []
    for k, rung in enumerate(ladder.rungs):
        cells = []
        for pair in pairs.values():
            measured = pair.measured[k].difference
            cells.append(format_estimate(measured, sign=True) if measured else "-")
            cells.append(format_interval(pair.gap.at(rung.parameters), sign=True) if pair.gap else "-")
        rows.append([rung.size, *cells])
    if ladder.target:
        name, parameters = ladder.target
        cells = []
        for pair in pairs.values():
            gap = pair.gap if pair.gap and pair.gap.reaches(parameters) else None
            cells += ["", format_interval(gap.at(parameters), sign=True) if gap else "-"]
        rows.append([f"{name}, not trained", *cells])
    if not any(pair.gap for pair in pairs.values()):
        header, rows = header[:1] + header[1::2], [row[:1] + row[1::2] for row in rows[: len(ladder.rungs)]]
    title = f"Difference in {LOSS} to {baseline}, over the seeds on which both trained"
    return Section(title, Table.of_rows(header, rows, numbers=True))


def _tabulate_failures(ladder: Ladder) -> Section:
    arms = ladder.compared.arms
    rows = [
        [rung.size, *(share.describe() if (share := arm.failures[k]) else "-" for arm in arms.values())]
        for k, rung in enumerate(ladder.rungs)
    ]
    title = "Fresh seeds that failed, with the exact 95 % interval of the share"
    return Section(title, Table.of_rows(["size", *arms], rows, numbers=True))


def _format_loss(arm: SizedArm, k: int) -> str:
    """Return '2.153 ± 0.012', with the number of seeds where some failed."""
    estimate, share = arm.estimates[k], arm.failures[k]
    if estimate is None:
        return "none trained" if share else "-"
    return format_estimate(estimate) + (f" ({estimate.n} of {share.n})" if share and share.failed else "")


def format_interval(value: Interval, sign: bool = False) -> str:
    """Return '2.1533 (2.1 ... 2.2)'; '+0.0120 (-0.0100 ... +0.0340)' of a difference."""
    text = f"{value.value:+.4f}" if sign else format_number(value.value)
    if value.low is None or value.high is None:
        return text
    return (
        f"{text} ({value.low:+.4f} ... {value.high:+.4f})" if sign else f"{text} ({value.low:.4f} ... {value.high:.4f})"
    )
