"""The joint result of the sizes of a file: how the arms differ as models grow or, if a grid of learning rates was
tested at each size, whether the best one holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.addons.scaling import rates, statements
from ablate.addons.scaling.comparison import SizedArm, SizedPair
from ablate.addons.scaling.figures import draw_differences, draw_losses, draw_transfer
from ablate.addons.scaling.fits import FORM, Curve
from ablate.addons.scaling.ladder import Ladder, fit_ladder
from ablate.addons.scaling.sizes import Size, arrange_chain, arrange_ladder
from ablate.addons.scaling.transfer import fit_transfer
from ablate.config.errors import ConfigError, Problem, SweepError
from ablate.plots.drawing import save
from ablate.plots.figure import Figure
from ablate.reports.plain_values import to_plain
from ablate.reports.section import Document, Section
from ablate.reports.storing import store_report
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.outcomes import LOSS

LADDER, TRANSFER = "ladder", "transfer"


@dataclass(frozen=True)
class OverSizes:
    """The joint result of several sizes."""

    kind: str
    """transfer or ladder."""
    name: str
    """The name of its folder, and of its experiment in MLflow."""
    values: dict[str, Any]
    """All numbers, for JSON."""
    findings: list[str]
    caveats: list[str]
    tables: list[Section]
    draw: Callable[[], list[Figure]]
    """Returns the figures, the most important first."""

    def to_plain(self) -> dict[str, Any]:
        """Return its numbers and words as plain values, without a place on this machine."""
        plain: dict[str, Any] = to_plain({"kind": self.kind, **self.values, "notes": self.caveats})
        return plain


@dataclass(frozen=True)
class SizesReport:
    """The joint result of several sizes, and the paths of its files."""

    content: OverSizes
    folder: Path
    """The folder of KIND.json, KIND.txt, KIND.html and the figures."""
    mlflow: dict[str, str] = field(default_factory=dict)
    """experiment_id and run_id; empty if the store did not accept the report."""
    notes: list[str] = field(default_factory=list)
    figures: list[Path] = field(default_factory=list)
    """PNG files."""

    @property
    def document(self) -> Document:
        """The report for its writers."""
        content, kind = self.content, self.content.kind
        files = [f"{kind}.html", *(path.name for path in self.figures), f"{kind}.json", f"{kind}.txt"]
        stored = [f'MLflow: run "report" of the experiment "{content.name}"'] if self.mlflow else []
        return Document(
            content.name,
            heading="What this shows",
            statements=content.findings,
            closing=True,
            figures=content.draw(),
            answers=content.tables,
            notes=self.remarks,
            places=[f"{self.folder}: {', '.join(files)}", *stored],
        )

    @property
    def remarks(self) -> list[str]:
        """The limits of the runs, and problems of the report."""
        return [*self.content.caveats, *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**self.content.values, "folder": str(self.folder), "mlflow": self.mlflow, "notes": self.remarks}


def compare(name: str, records: Mapping[str, SweepRecord], extrapolate: str | None = None) -> OverSizes:
    """Return the joint result of the `records` of the sizes of the file `name` (size -> record); `extrapolate`: a size
    to foretell. Raises ConfigError where they can't be compared, and SweepError where too little has ended."""
    specs = {size: record.spec for size, record in records.items()}
    if _tests_grid(specs.values()):
        if extrapolate:
            text = "goes with one setting of each arm at each size, and these sweeps test a grid"
            raise ConfigError([Problem("--extrapolate", text, extrapolate)], name)
        return _compare_rates(name, records)
    return _compare_arms(name, records, extrapolate)


def find_comparison(name: str, records: Mapping[str, SweepRecord]) -> OverSizes | None:
    """Return `compare`; None where the sizes can't be compared, or too little of them has ended."""
    try:
        return compare(name, records)
    except (ConfigError, SweepError):
        return None


def note_plan(name: str, specs: Mapping[str, Sweep]) -> list[str]:
    """Return remarks on the sizes of the file `name` (size -> sweep) before they are run: why they will not be
    compared with each other, or that their attention heads differ."""
    try:
        if _tests_grid(specs.values()):
            return list(filter(None, [arrange_chain(specs, name).describe_heads()]))
        arrange_ladder([Size.of(size, spec) for size, spec in specs.items()], name)
    except ConfigError as error:
        return [f"The sizes will not be compared with each other: {error.problems[0]}"]
    return []


def _tests_grid(specs: Iterable[Sweep]) -> bool:
    return any(cell.point for spec in specs for cell in spec.cells.values())


def _compare_rates(name: str, records: Mapping[str, SweepRecord]) -> OverSizes:
    chain = arrange_chain({size: record.spec for size, record in records.items()}, name)
    found = fit_transfer(chain, [records[size.name] for size in chain.sizes])
    return OverSizes(
        TRANSFER,
        chain.name,
        rates.describe_transfer(found),
        rates.state_findings(found),
        rates.list_caveats(found),
        [rates.tabulate_optima(found), *rates.tabulate_losses(found)],
        lambda: [draw_transfer(found)],
    )


def _compare_arms(name: str, records: Mapping[str, SweepRecord], extrapolate: str | None) -> OverSizes:
    known = arrange_ladder([Size.of(size, record.spec) for size, record in records.items()], name)
    title = f"{name.removesuffix('-ladder')}-ladder"
    found = fit_ladder(title, known, [records[size.name] for size in known], extrapolate)
    return OverSizes(
        LADDER,
        title,
        describe_ladder(found),
        statements.state_findings(found),
        statements.list_caveats(found),
        statements.tabulate(found),
        lambda: [draw_differences(found), draw_losses(found)],
    )


def report_sizes(content: OverSizes) -> SizesReport:
    """Write the figures, page, JSON and text into `reports/NAME` of the store, and to the run "report" of the MLflow
    experiment of that name; an MLflow store that fails is noted. Raises StoreError if the folder cannot be written."""
    folder, kind = tracking.open_folder(f"reports/{content.name}"), content.kind
    written = SizesReport(content, folder, figures=[save(figure, folder)[0] for figure in content.draw()])
    return store_report(content.name, written, (f"{kind}.json", f"{kind}.txt", f"{kind}.html"))


def describe_ladder(ladder: Ladder) -> dict[str, Any]:
    """Return plain values, for JSON."""
    compared, target = ladder.compared, ladder.target
    sizes = zip(ladder.sizes, ladder.trivial_losses, strict=True)
    return {
        "ladder": ladder.name,
        "metric": LOSS,
        "baseline": ladder.baseline,
        "sizes": [
            {
                "size": size.name,
                "sweep": size.spec.name,
                "parameters": size.parameters,
                "items": size.items,
                "trivial_loss": trivial,
            }
            for size, trivial in sizes
        ],
        "losses": {name: arm.losses for name, arm in compared.arms.items()},
        "failures": {name: _list_failures(arm) for name, arm in compared.arms.items()},
        "curves": {
            name: _describe_curve(arm.curve, target) for name, arm in compared.arms.items() if arm.curve is not None
        },
        "differences": {name: _describe_pair(ladder, pair) for name, pair in compared.pairs.items()},
        "flops": ladder.computes,
        "effective_speedups": {
            name: [asdict(one) if one else None for one in own] for name, own in ladder.speedups.items()
        },
        "comparisons": compared.family,
        "extrapolate": {"size": target[0], "parameters": target[1]} if target else None,
        "verdict": statements.state_findings(ladder),
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
        "fitted": [asdict(gap.at(size.parameters)) for size in ladder.sizes] if gap else None,
        "trend": {**asdict(pair.trend), "verdict": pair.trend.word} if pair.trend else None,
        "prediction": asdict(pair.prediction) if pair.prediction else None,
        "extrapolated": asdict(gap.at(target[1])) if gap and target and gap.reaches(target[1]) else None,
    }
