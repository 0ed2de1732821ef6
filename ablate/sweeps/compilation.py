"""Whether the trials of a sweep are compiled: chosen once, for all of them together, and kept with the sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ablate.sweeps.records import count_remaining
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.compilation import Compilation, Runs, choose_compilation

if TYPE_CHECKING:
    from ablate.data import Corpus, DataConfig

NOTE = "compilation"
"""The user attribute of a study under which the choice is kept."""
_SHAPING = ("model", "task", "data", "trainer")
"""Parts of an experiment whose settings may change the length of a trial or the shapes that it computes with."""


def choose_for_sweep(spec: Sweep, corpora: Mapping[DataConfig, Corpus]) -> Compilation | None:
    """Return whether the trials of `spec` are compiled whose settings leave it open, the same for all arms, by the time
    of all trials that it is sure to run; None if there are no such trials."""
    runs = [one for one in list_runs(spec, corpora) if one.experiment.trainer.compile == "auto"]
    return choose_compilation(runs) if runs else None


def list_runs(spec: Sweep, corpora: Mapping[DataConfig, Corpus]) -> Iterator[Runs]:
    """Yield the trainings that `spec` is sure to run, without pruning: of each arm those of its search, of its
    selection, and on fresh seeds up to the first look. Where its search changes a trial's length or shapes, it has an
    equal part of them at each value, or at each end of a range."""
    for arm in spec.all_arms:
        base = spec.base(arm)
        if base.procedure != "training":
            continue
        corpus = corpora[base.data]
        count = count_remaining(spec, arm, [], base.items) * spec.find_share(arm)  # in whole runs
        count += spec.count_selection_runs(arm) + spec.confirm.first_seeds
        points = [
            {path: value}
            for path, values in spec.corners(arm).items()
            if path.partition(".")[0] in _SHAPING
            for value in values
        ]
        for experiment in [spec.at(arm, point) for point in points] or [base]:
            yield Runs(experiment, corpora.get(experiment.data, corpus), count / max(1, len(points)))


def parse_note(note: Mapping[str, Any] | None) -> Compilation | None:
    """Return the choice in a note of a study, if there is one."""
    return Compilation(bool(note["compiles"]), str(note["why"])) if note else None
