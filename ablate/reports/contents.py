"""What is in a report, before it is put into tables, a page or JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ablate.config.formatting import join_words
from ablate.reports import confirmation, cost, fairness, findings, literature, savings
from ablate.reports.downstream import Downstream, compare_downstream
from ablate.reports.sensitivity import Sensitivity, sensitivity
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.scale import told
from ablate.verdict.confirmation import Confirmed


@dataclass(frozen=True)
class Contents:
    """What a sweep found."""

    record: SweepRecord
    """The sweep and its trials."""
    figures: list[Path]
    """PNG files."""
    importance: dict[str, dict[str, float]]
    """Arm -> searched parameter -> share of the explained variation; empty for an arm with too few trials."""
    mlflow: dict[str, Any]
    """experiment, experiment_id, tracking_uri (without password), run_id of the report, parents (arm -> run)."""
    folder: Path
    """Where the figures, report.html, report.json and table.txt are."""
    notes: list[str] = field(default_factory=list)
    """What to know before believing the numbers."""
    captions: dict[str, str] = field(default_factory=dict)
    """Name of a figure's file -> what it shows."""

    @property
    def scale(self) -> str:
        """That this is not the full setting of the sweep file, with the numbers; '' where it is."""
        return told(self.record.spec)

    @property
    def verdict(self) -> str:
        """What the fresh seeds show; without them, the best value of each arm and how little one seed proves. And in
        what else the arms differ."""
        text = confirmation.verdict(self.record, self.confirmed) or findings.verdict(self.record)
        besides = self.confounds.found if self.confounds else None
        if besides:
            others = join_words(confound.path for confound in besides)
            text += f" The arms differ in {others} too, so a difference may be due to that."
        return text

    @property
    def spreads(self) -> list[str]:
        """What the settings do within each arm, as sentences."""
        return [text for arm in self.record.trials if (text := findings.spread_text(self.record, arm))]

    @cached_property
    def confirmed(self) -> dict[str, Confirmed]:
        """Arm -> how it did on fresh seeds."""
        return confirmation.compare_arms(self.record)

    @cached_property
    def sensitivities(self) -> dict[str, Sensitivity | None]:
        """Arm -> how much its learning rate matters."""
        return {arm: sensitivity(self.record, arm) for arm in self.record.trials}

    @cached_property
    def published(self) -> list[literature.Source]:
        """The figures of papers beside ours."""
        return literature.published(self.record)

    @cached_property
    def downstream(self) -> Downstream:
        """The scores on downstream tasks."""
        return compare_downstream(self.record)

    @cached_property
    def confounds(self) -> fairness.Confounds | None:
        """In what the arms differ besides what is compared; None for one arm."""
        return fairness.confounds(self.record)

    @cached_property
    def surroundings(self) -> list[fairness.Surrounding]:
        """In what the runs differ."""
        return fairness.surroundings(self.record)

    @cached_property
    def measure(self) -> cost.Measure:
        """What the length of training is told in."""
        return cost.Measure.of(self.record)

    @cached_property
    def costs(self) -> dict[str, cost.Cost]:
        """Arm -> what its trials took."""
        return {arm: cost.cost(self.measure, trials) for arm, trials in self.record.trials.items()}

    @cached_property
    def savings(self) -> dict[str, savings.Saving]:
        """Arm -> what one training takes with what it starts from; empty where none starts from anything."""
        return savings.savings(self.record)

    @cached_property
    def confirmation_costs(self) -> dict[str, cost.Cost]:
        """Arm -> what its trainings on fresh seeds took."""
        return {arm: cost.cost(self.measure, self.record.confirmed.get(arm, ())) for arm in self.record.trials}
