"""`sweep:NAME/ARM`, the best trial of an arm, wherever an experiment names a model.

`warm_start.from: sweep:NAME/ARM` names an arm of the sweep NAME; `sweep:/ARM` one of the same sweep, whatever it is
called; `align.reward` an arm of an earlier sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablate.experiment.tree import Experiment
    from ablate.sweeps.spec.fields import SweepFields


PREFIX = "sweep:"


WEIGHTS, REWARD = "warm_start.from", "align.reward"  # where models are named


def parse_reference(given: str | None) -> tuple[str, str] | None:
    """(sweep, arm) of `sweep:NAME/ARM`; None of anything else."""
    if given is None or not given.startswith(PREFIX):
        return None
    title, _, arm = given.removeprefix(PREFIX).partition("/")
    return title, arm


def list_references(experiment: Experiment) -> dict[str, str]:
    """Dotted path -> the model that is named there: what `experiment` starts from, and what judges it."""
    start, align = experiment.warm_start, experiment.align
    found = {WEIGHTS: start.donor if start else None, REWARD: align.reward if align else None}
    return {path: given for path, given in found.items() if given is not None}


def find_donor(spec: SweepFields, arm: str) -> tuple[str, str] | None:
    """(sweep, arm) that the trials of `arm` start from; the sweep is "" where it is `spec` itself."""
    start = spec.base(arm).warm_start
    found = parse_reference(start.donor) if start else None
    return ("", found[1]) if found and found[0] == spec.name else found


def find_own_donor(spec: SweepFields, arm: str) -> str | None:
    """The arm of the same sweep that the trials of `arm` start from."""
    title, donor = find_donor(spec, arm) or (None, None)
    return donor if title == "" else None


def list_earlier_sweeps(spec: SweepFields) -> list[str]:
    """The names of the sweeps that arms of `spec` start from or are judged by, each once; a generation is left as it
    is."""
    given = [given for arm in spec.all_arms for given in list_references(spec.base(arm)).values()]
    titles = [found[0] for one in given if (found := parse_reference(one)) and found[0] not in ("", spec.name)]
    return [title for title in dict.fromkeys(titles) if "@" not in title]


def rename_reference(given: str | None, spec: SweepFields, suffix: str) -> str | None:
    """What `sweep:NAME/ARM` becomes where every sweep is called NAME and `suffix`; None of what stays."""
    found = parse_reference(given)
    if found is None or not found[0] or "@" in found[0]:
        return None
    return f"{PREFIX}/{found[1]}" if found[0] == spec.name else f"{PREFIX}{found[0]}{suffix}/{found[1]}"
