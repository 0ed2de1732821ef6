"""`verify`: whether a bundle is what was published, follows from its runs, and comes out again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ablate.addons.bundles import claims, files
from ablate.addons.bundles.reruns import Rerun, Trained, find_obstacle, list_reruns, shuffle_reruns, train_again
from ablate.config.errors import DataError
from ablate.config.formatting import format_number, join_words
from ablate.reports.plain_values import to_plain
from ablate.verdict.intervals import find_t_limit
from ablate.verdict.outcomes import LOSS, classify

ALPHA = 0.05
"""Error of all runs together: the probability that a run is said not to come out again elsewhere, though it does."""
LEAST_PEERS = 2
ROUNDING = 1e-4
"""Largest difference of values that agree to rounding, as a share of the published one."""
_HARMLESS = ("ablate.dirty", "version.mlflow", "version.optuna")
"""Facts that change no number of a run."""

Word = Literal["bit for bit", "to rounding", "within the seeds", "not reproduced", "cannot be compared"]
_GOOD = ("bit for bit", "to rounding", "within the seeds")
_CORPUS = "ablate.corpus"


@dataclass(frozen=True)
class Checked:
    """One run that was trained again."""

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


def compare_rerun(rerun: Rerun, trained: Trained, count: int) -> Checked:
    """Return whether a run came out again: bit for bit, where hardware, versions and corpus are those of then; else
    within the seeds: it differs from the published value by no more than two seeds of the same settings do, with an
    error of 5 % for all `count` runs together (Student's t, from the other seeds). Where training amplifies rounding
    until nothing but the settings are shared, that is how far a true one lies away; mostly it lies closer. On another
    corpus nothing can be said."""
    facts, run = rerun.run.facts, rerun.run
    keys = dict.fromkeys([*facts, *trained.facts])
    differs = {
        key: (facts.get(key, "not known"), trained.facts.get(key, "not known"))
        for key in keys
        if key not in _HARMLESS and facts.get(key) != trained.facts.get(key)
    }
    ending = "diverged"
    if trained.status != "diverged":
        ending = classify(trained.metrics.get(LOSS), rerun.record.trivial_loss)
    word, why = _judge_rerun(rerun, trained, ending, bool(differs), count)
    return Checked(rerun.label, word, run.value, trained.value, ending, why, differs)


def _judge_rerun(rerun: Rerun, trained: Trained, ending: str, elsewhere: bool, count: int) -> tuple[Word, str]:
    run, runs = rerun.run, rerun.record.runs
    outcome, curve = runs.find_outcome(run), run.curve
    peers = [peer for other in rerun.peers if (peer := runs.find_outcome(other))]
    before = outcome.ending if outcome else None
    same_curve = to_plain(curve) == to_plain(trained.curve)  # where a value is not finite, both are
    if run.status == trained.status and run.value == trained.value and same_curve:
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


def _format(value: float | None, ending: str | None) -> str:
    return f"{value:.6g}" + ("" if ending == "trained" else f" ({ending})") if value is not None else str(ending)


@dataclass(frozen=True)
class Verification:
    """The findings."""

    name: str
    damage: list[str]
    """Changes in the files, and claims that do not follow from the runs."""
    runs: list[Checked] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """If all runs were trained: verdicts that differ with the values found here."""
    left_out: list[str] = field(default_factory=list)
    """Runs that were drawn but cannot be trained from the bundle, and why."""
    of: int = 0
    """Runs of the bundle."""

    @property
    def holds(self) -> bool:
        """Whether nothing was found against it, and all runs that were trained came out again."""
        return not self.damage and not self.changed and all(rerun.reproduced for rerun in self.runs)

    @property
    def reproduced(self) -> bool | None:
        """Whether runs of it came out again; None if none was trained and nothing was found against it."""
        return self.holds if self.runs or not self.holds else None

    def list_surroundings(self) -> dict[str, tuple[str, str]]:
        """Return fact -> as published, and here, for those facts in which the runs here differ from theirs."""
        return {name: values for rerun in self.runs for name, values in rerun.differs.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "bundle": self.name,
            "reproduced": self.reproduced,
            "damage": self.damage,
            "runs": [asdict(rerun) for rerun in self.runs],
            "changed_verdicts": self.changed,
            "left_out": self.left_out,
            "runs_in_bundle": self.of,
        }


def verify(
    folder: str | Path,
    *,
    runs: int | None = 1,
    cheapest: bool = False,
    only: Sequence[str] = (),
    trusts_plugins: bool = False,
    train: Callable[[Rerun], Trained] = train_again,
    show: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Check the bundle in `folder`, and train some of its runs again.

    Args:
        folder: the bundle.
        runs: how many, drawn at random; None: all; 0: none.
        cheapest: whether they are drawn from among the cheapest.
        only: they are drawn from among those that have all of these texts in their labels.
        trusts_plugins: whether the bundle's plugins may be run.
        train: trains a run; by default as an experiment here.
        show: is called with sentences on the progress.

    Raises DataError and ConfigError for what is no bundle, for plugins that are not trusted, and if no run fits `only`.
    """
    bundle = files.read_bundle(folder)
    if damage := files.list_damage(folder):
        return Verification(bundle.name, damage)
    with files.refuse_misfits(folder):
        records = files.restore_records(bundle, folder, trusts_plugins)
        if damage := [*claims.check_values(bundle), *claims.check_verdicts(bundle, records)]:
            return Verification(bundle.name, damage)
        show("Files: as published. Verdict: follows from the runs.")
        every = list_reruns(records.values())
    named = [rerun for rerun in every if all(text in rerun.label for text in only)]
    if every and not named:
        raise DataError(f"No run of {bundle.name} is called {join_words(only)}. One of its runs is {every[0].label!r}.")
    chosen, left_out = _choose(named, len(named) if runs is None else runs, cheapest)
    checked, retrained = [], []
    for number, rerun in enumerate(chosen, 1):
        show(f"[{number}/{len(chosen)}] {rerun.label}")
        trained = _train(rerun, train)
        retrained.append((rerun, trained))
        checked.append(compare_rerun(rerun, trained, len(chosen)))
        show(f"  {checked[-1].word}: {checked[-1].why}")
    changed = claims.list_other_kinds(bundle.name, records, retrained) if runs is None else []
    return Verification(bundle.name, [], checked, changed, left_out, len(every))


def _train(rerun: Rerun, train: Callable[[Rerun], Trained]) -> Trained:
    """Return the result of a run here. Raises DataError with the corpus that it needs, if its data is not here."""
    try:
        return train(rerun)
    except DataError as error:
        corpus = rerun.run.facts.get("ablate.corpus", "not known")
        known = f"No corpus is part of a bundle; the SHA-256 of this one is {corpus}."
        raise DataError(f"{rerun.label} cannot be trained here: {error} {known}") from None


def _choose(every: Sequence[Rerun], count: int, cheapest: bool) -> tuple[list[Rerun], list[str]]:
    """Return `count` runs that can be trained, and why others that were drawn cannot."""
    chosen: list[Rerun] = []
    left_out = []
    for rerun in every if count == len(every) else shuffle_reruns(every, count, cheapest):
        if len(chosen) == count:
            break
        if obstacle := find_obstacle(rerun):
            left_out.append(f"{rerun.label}: {obstacle}")
        else:
            chosen.append(rerun)
    return chosen, left_out
