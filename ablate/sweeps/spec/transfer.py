"""`search: {transfer: {from: SIZE}}`: the arms are searched at one size of the file, and the others take over what was
chosen there.

Such a file comes to more sweeps than it has sizes: the search; a spot check at a larger size, the next one unless the
file says another, in which each arm is trained at half its learning rate, at it and at twice; then the other sizes.
What these train is known once the first two have ended (`ablate.sweeps.transferring`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from ablate.config.base import Config
from ablate.config.formatting import format_settings, shorten_paths
from ablate.sweeps.search.space import Choice

FACTORS = (0.5, 1.0, 2.0)
"""Of the learning rates of a spot check."""
RATE = "lr"
"""What the last part of the path of a learning rate ends with: optimizer.lr, optimizer.muon_lr."""


class Transfer(Config):
    """The search of one size of a file, the smallest, whose chosen settings the other sizes take over. What follows
    `seeds` is set when the file is read and when its sweeps begin."""

    source: str = Field(alias="from")
    """The size at which every arm is searched."""
    at: str | None = None
    """The size of the spot check. Default: the smallest but one. A best rate that moves a little from size to size is
    seen at a large one alone."""
    seeds: int = Field(3, ge=2, le=100)
    """Seeds of the spot check. No arm is tested on them, since they decide whether it is searched."""
    search: str | None = None
    """Name of the sweep in which the arms are searched."""
    check: str | None = None
    """Name of the sweep that is the spot check."""
    outcome: Literal["check", "holds", "searched"] | None = None
    """What the sweep has come to. check: it is the spot check. holds: its arms take over the settings. searched: its
    arms are searched like those of any sweep, as the settings of some arm were refused. None: it is not known yet."""
    reason: str | None = None
    """Which arms were refused, and why; None where none was."""
    settings: dict[str, dict[str, Choice]] = {}
    """Arm -> what it took over."""

    def describe(self) -> str:
        """Return what a report says of it; '' where nothing is known yet."""
        if self.outcome == "check":
            return (
                f"Each arm is trained at the settings that {self.search} chose for it, and at half and twice their "
                "learning rate, to see whether they may be taken over; no arms are compared."
            )
        if self.outcome == "holds":
            return (
                f"Nothing was searched here: each arm has the settings that {self.search} chose for it "
                f"({self._format_settings()}). At {self.at}, where {self.check} tried half and twice their learning "
                f"rate on {self.seeds} seeds, none was better by more than confirm.effect, and none failed on fewer "
                "seeds; at other sizes that was not tried."
            )
        if self.outcome == "searched":
            if self.reason is None:  # of a sweep that began before reasons were kept
                return f"Every arm was searched here, as {self.check} refused the settings that {self.search} chose."
            return f"Every arm was searched here, as the settings that {self.search} chose were refused: {self.reason}."
        return ""

    def _format_settings(self) -> str:
        """Return 'pre lr=0.004, mix lr=0.006 alpha=0.5'."""
        names = shorten_paths(path for settings in self.settings.values() for path in settings)
        return ", ".join(f"{arm} {format_settings(settings, names)}" for arm, settings in self.settings.items())


def list_rates(settings: Mapping[str, Any]) -> list[str]:
    """Return those of the dotted paths that are learning rates."""
    return [path for path in settings if path.rpartition(".")[2].endswith(RATE)]
