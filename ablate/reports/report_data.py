"""The content of a sweep's report, before it is rendered as tables, a page or JSON, and its figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ablate.config.formatting import join_words
from ablate.config.logs import name_program
from ablate.plots.figure import Figure
from ablate.reports import fairness, findings, literature, verdict_sections
from ablate.reports.bands import draw_bands
from ablate.reports.downstream import Downstream
from ablate.reports.layer_seeds import LayersOverSeeds, compare_layers, draw_layers_over_seeds
from ablate.reports.search_figures import draw_curves, draw_parameters
from ablate.reports.sensitivity import SeedSensitivities, Sensitivity, compare_sensitivities, compute_sensitivity
from ablate.reports.speed import describe_claims, describe_equal_cost, draw_speeds
from ablate.reports.terminal import shorten_path
from ablate.reports.usage import KINDS, Cost, Usage, UsageUnit, compute_costs, sum_usage
from ablate.reports.verdict_figures import draw_effects, draw_failures, draw_grid, draw_verdict
from ablate.sweeps.comparison import compare_record, compare_record_effects
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import SEARCH
from ablate.sweeps.search_edges import describe_edges
from ablate.sweeps.spec.scale import describe_scale
from ablate.sweeps.speed import Speed, compare_speeds, compare_times
from ablate.sweeps.verdict_summary import summarise_verdict
from ablate.verdict.comparison import Compared
from ablate.verdict.effects import Effect


@dataclass(frozen=True)
class ReportData:
    """The record of a sweep, and the results derived from it."""

    record: SweepRecord
    """The sweep and its trials."""
    downstream: Downstream
    """The scores on downstream tasks."""
    figures: list[Path]
    """PNG files; each has an SVG file of the same name beside it."""
    mlflow: dict[str, Any]
    """experiment, experiment_id, tracking_uri (without password), run_id of the report, parents (arm -> run)."""
    folder: Path
    """The folder of the figures, report.html, report.json and table.txt."""
    notes: list[str] = field(default_factory=list)
    """Warnings about the numbers."""

    def __repr__(self) -> str:
        """Return one line, for a notebook."""
        return f"<{type(self).__name__} {self.record.title}: {self.summary}>"

    def list_places(self) -> list[str]:
        """Return where its files are, for a terminal."""
        where, folder = self.mlflow, shorten_path(self.folder)
        lines = []
        if (self.folder / "report.html").exists():
            files = ", ".join(["report.json", "table.txt", *(path.name for path in self.figures)])
            lines = [f"{folder}/report.html: the page, for a browser", f"in the same folder: {files}"]
        run = 'run "report" of the experiment' if where.get("run_id") else "the experiment"
        lines.append(f'MLflow: {run} "{where["experiment"]}" at {where["tracking_uri"]}')
        return [*lines, f"Open it with: {name_program()} ui"]

    @property
    def scale(self) -> str:
        """A note that this is not the full setting of the sweep file, with the numbers; '' if it is."""
        return describe_scale(self.record.spec)

    @property
    def verdict(self) -> str:
        """The comparison on fresh seeds; before the first of them, the best value of each arm and the limits of one
        seed. Then the arms that stand at an end of a searched range, and the other settings in which arms differ."""
        text = verdict_sections.describe_verdict(self.record, self.confirmed)
        if not text:
            text = findings.describe_search(self.record)
            if any(self.record.best(arm) for arm in self.record.arms):
                text = f"{self.summary} {text}"
        faster = describe_claims(self.record, self.speeds, self.times)
        text = " ".join(filter(None, [text, *faster, describe_equal_cost(self.record), *describe_edges(self.record)]))
        spec = self.record.spec
        text = " ".join([text, *(one.describe() for one in (spec.taken_over, spec.spent) if one)])
        confounds = self.confounds.found if self.confounds else None
        if confounds:
            others = join_words(confound.path for confound in confounds)
            text += f" The arms differ in {others} too, so a difference may be due to that."
        return text

    @property
    def summary(self) -> str:
        """The verdict on all arms in one line, and which of them are faster."""
        return " ".join([summarise_verdict(self.record), *describe_claims(self.record, self.speeds, self.times)])

    @cached_property
    def drawings(self) -> list[Figure]:
        """All figures."""
        return draw_figures(self.record)

    @cached_property
    def confirmed(self) -> dict[str, Compared]:
        """Arm -> its comparison on fresh seeds; empty before the first of them."""
        return compare_record(self.record)

    @cached_property
    def effects(self) -> dict[str, Effect]:
        """Contrast of a factorial -> its effect on fresh seeds; empty for other sweeps."""
        return compare_record_effects(self.record)

    @cached_property
    def sensitivities(self) -> dict[str, Sensitivity | None]:
        """Arm -> its learning-rate sensitivity."""
        return {arm: compute_sensitivity(self.record, arm) for arm in self.record.arms}

    @cached_property
    def seed_sensitivities(self) -> SeedSensitivities | None:
        """The learning-rate sensitivity over seeds, for a sweep that tests each point of a grid."""
        return compare_sensitivities(self.record)

    @cached_property
    def layers(self) -> LayersOverSeeds | None:
        """The layers of fresh seeds at the end of training; None if nothing was measured of them."""
        return compare_layers(self.record)

    @cached_property
    def published(self) -> list[literature.PublishedTable]:
        """The figures of papers beside ours."""
        return literature.compare_published(self.record, self.downstream.stored)

    @cached_property
    def confounds(self) -> fairness.Confounds | None:
        """Differences between the arms other than the compared factor; None for one arm."""
        return fairness.find_confounds(self.record)

    @cached_property
    def usage_unit(self) -> UsageUnit:
        """The unit of the length of training."""
        return UsageUnit.of(self.record)

    @cached_property
    def usage(self) -> dict[str, Usage]:
        """Arm -> what its search used."""
        return self._sum_usage(SEARCH)

    @cached_property
    def usage_after(self) -> dict[str, dict[str, Usage]]:
        """Each stage after the search (`KINDS`) -> arm -> what its runs used."""
        return {stage: self._sum_usage(stage) for stage in KINDS}

    def _sum_usage(self, stage: str) -> dict[str, Usage]:
        runs = self.record.runs
        return {arm: sum_usage(self.usage_unit, runs.select(arm, stage)) for arm in self.record.arms}

    @cached_property
    def speeds(self) -> dict[str, Speed]:
        """Arm -> how soon it reaches the final objective of the baseline; without the baseline."""
        return compare_speeds(self.record)

    @cached_property
    def times(self) -> dict[str, Speed]:
        """Arm -> how soon it reaches the target of the file; empty if it has none."""
        return compare_times(self.record)

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """Arm -> the cost of one training including its source runs; empty if no arm has a source run."""
        return compute_costs(self.record)


MOST_ROWS = 40
"""Most rows of a figure with a row for each arm."""


def draw_figures(record: SweepRecord) -> list[Figure]:
    """Return grid, effects, failures, verdict, speed, bands, layers-seeds, learning_rate, alpha, one more for each
    other searched number, and curves: those that have data."""
    compared, effects = compare_record(record), compare_record_effects(record)
    layers = compare_layers(record)
    figures = [
        draw_grid(record, compared) if compared else None,
        draw_effects(record, effects) if effects else None,
        draw_failures(record, compared),
        draw_verdict(record, compared) if len(compared) <= MOST_ROWS else None,
        draw_speeds(record, compare_speeds(record), compare_times(record)) if len(compared) <= MOST_ROWS else None,
        draw_bands(record, compared),
        draw_layers_over_seeds(record, layers) if layers else None,
        *draw_parameters(record, compared),
        draw_curves(record),
    ]
    return [figure for figure in figures if figure]
