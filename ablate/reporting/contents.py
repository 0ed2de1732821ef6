"""What is in a report, before it is put into tables or JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ablate.reporting import confirmation, findings
from ablate.sweeping.records import SweepRecord


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
    """Where the figures, report.json and table.txt are."""
    notes: list[str] = field(default_factory=list)
    """What to know before believing the numbers."""

    @property
    def verdict(self) -> str:
        """What the fresh seeds show; without them, the best value of each arm and how little one seed proves."""
        return confirmation.verdict(self.record, self.confirmed) or findings.verdict(self.record)

    @cached_property
    def confirmed(self) -> dict[str, confirmation.Confirmed]:
        """Arm -> how it did on fresh seeds."""
        return confirmation.confirmations(self.record)
