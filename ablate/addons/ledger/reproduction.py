"""Whether a cell that was trained again came out as published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ablate.addons.ledger.cells import Cell
from ablate.addons.ledger.retraining import Trained
from ablate.config.formatting import format_number
from ablate.verdict.intervals import find_t_limit
from ablate.verdict.outcomes import LOSS, classify

ALPHA = 0.05
"""Error of all cells together: that one which was trained elsewhere is said not to come out again, though it does."""
LEAST_PEERS = 2
ROUNDING = 1e-4
"""Share of the published value by which one may differ that is said to agree to rounding."""
_HARMLESS = ("ablate.dirty", "version.mlflow", "version.optuna")
"""Facts that change no number of a run."""

Word = Literal["bit for bit", "to rounding", "within the seeds", "not reproduced", "cannot be compared"]
_GOOD = ("bit for bit", "to rounding", "within the seeds")
_CORPUS = "ablate.corpus"


@dataclass(frozen=True)
class Checked:
    """One cell that was trained again."""

    label: str
    word: Word
    published: float | None
    """The objective; None if it diverged."""
    value: float | None
    ending: str
    why: str
    differs: dict[str, tuple[str, str]]
    """Fact -> as published, and here."""

    @property
    def reproduced(self) -> bool:
        """Whether it came out again."""
        return self.word in _GOOD


def compare_cell(cell: Cell, trained: Trained, count: int) -> Checked:
    """Return whether a cell came out again: bit for bit, where hardware, versions and corpus are those of then; else
    within the seeds: it differs from the published value by no more than two seeds of the same settings do, with an
    error of 5 % for all `count` cells together (Student's t, from the other seeds). Where training amplifies rounding
    until nothing but the settings are shared, that is how far a true one lies away; mostly it lies closer. On another
    corpus nothing can be said."""
    facts, run = cell.run.facts, cell.run
    keys = dict.fromkeys([*facts, *trained.facts])
    differs = {
        key: (facts.get(key, "not known"), trained.facts.get(key, "not known"))
        for key in keys
        if key not in _HARMLESS and facts.get(key) != trained.facts.get(key)
    }
    ending = _name_ending(cell, trained)
    word, why = _judge_cell(cell, trained, ending, bool(differs), count)
    return Checked(cell.label, word, run.value, trained.value, ending, why, differs)


def _name_ending(cell: Cell, trained: Trained) -> str:
    if trained.status == "diverged":
        return "diverged"
    return classify(trained.metrics.get(LOSS), cell.record.trivial_loss)


def _judge_cell(cell: Cell, trained: Trained, ending: str, elsewhere: bool, count: int) -> tuple[Word, str]:
    run, runs = cell.run, cell.record.runs
    outcome, curve = runs.find_outcome(run), run.curve
    peers = [peer for other in cell.peers if (peer := runs.find_outcome(other))]
    before = outcome.ending if outcome else None
    if run.status == trained.status and run.value == trained.value and _is_same(curve, trained.curve):
        at = f"{len(curve)} values of its curve" if len(curve) > 1 else "its value"
        return "bit for bit", f"{at}, {_format(run.value, before)}"
    told = f"published {_format(run.value, before)}, here {_format(trained.value, ending)}"
    there, here = run.facts.get(_CORPUS), trained.facts.get(_CORPUS)
    if there and here and there != here:
        return "cannot be compared", f"{told}, on another corpus ({here[:12]}..., not {there[:12]}...)"
    if not elsewhere:
        return "not reproduced", f"{told}, though hardware, versions and corpus are the same"
    if before != ending:
        if any(peer.ending == ending for peer in peers):
            return "within the seeds", f"{told}; other seeds of the same settings ended so too"
        return "not reproduced", f"{told}, as no other seed of these settings did"
    if run.value is None or trained.value is None:
        return "within the seeds", f"{told}, in another way"
    distance = abs(trained.value - run.value)
    if distance <= ROUNDING * abs(run.value):
        return "to rounding", told
    values = [peer.value for peer in peers if peer.ending == ending and peer.value is not None]
    if len(values) < LEAST_PEERS:
        return "cannot be compared", f"{told}; too few other seeds show how far seeds lie apart"
    limit = bound_distance(values, ALPHA / count)
    word: Word = "within the seeds" if distance <= limit else "not reproduced"
    return word, f"{told}; two seeds lie up to {format_number(limit)} apart"


def bound_distance(values: Sequence[float], level: float) -> float:
    """Return the distance that two more values of the same normal distribution exceed with the probability `level`."""
    n = len(values)
    mean = math.fsum(values) / n
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    return find_t_limit(level, n) * sd * math.sqrt(2)


def _is_same(*curves: Mapping[int, float]) -> bool:
    first, second = ({step: v if math.isfinite(v) else None for step, v in curve.items()} for curve in curves)
    return first == second


def _format(value: float | None, ending: str | None) -> str:
    return f"{value:.6g}" + ("" if ending == "trained" else f" ({ending})") if value is not None else str(ending)
