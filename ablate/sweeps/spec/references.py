"""`sweep:NAME/ARM`, the trial that represents an arm, in the settings of an experiment that name a model.

`warm_start.from: sweep:NAME/ARM` names an arm of the sweep NAME; `sweep:/ARM` an arm of the same sweep, whatever its
name; `align.reward` an arm of an earlier sweep.
"""

from __future__ import annotations

from typing import NamedTuple

from ablate.experiment.tree import WEIGHTS
from ablate.sweeps.spec.fields import SweepFields

PREFIX = "sweep:"


class Reference(NamedTuple):
    """An arm of a sweep."""

    sweep: str
    """Name of the sweep, with the generation if it is given; "" for the same sweep."""
    arm: str


def parse_reference(name: str | None) -> Reference | None:
    """Return the reference `sweep:NAME/ARM`; None for any other value."""
    if name is None or not name.startswith(PREFIX):
        return None
    sweep, _, arm = name.removeprefix(PREFIX).partition("/")
    return Reference(sweep, arm)


def find_donor(spec: SweepFields, arm: str) -> Reference | None:
    """Return the arm that the trials of `arm` start from; its sweep is "" if it is `spec` itself."""
    donor = parse_reference(spec.base(arm).list_references().get(WEIGHTS))
    return Reference("", donor.arm) if donor and donor.sweep == spec.name else donor


def find_own_donor(spec: SweepFields, arm: str) -> str | None:
    """Return the arm of the same sweep that the trials of `arm` start from."""
    donor = find_donor(spec, arm)
    return donor.arm if donor and donor.sweep == "" else None


def list_earlier_sweeps(spec: SweepFields) -> list[str]:
    """Return the names of the sweeps that arms of `spec` refer to for source runs or reward models, each once, except
    references to a given generation, which are fixed."""
    names = [name for arm in spec.all_arms for name in spec.base(arm).list_references().values()]
    references = [reference for name in names if (reference := parse_reference(name))]
    sweeps = dict.fromkeys(r.sweep for r in references if r.sweep not in ("", spec.name))
    return [sweep for sweep in sweeps if "@" not in sweep]


def rename_reference(name: str | None, spec: SweepFields, suffix: str) -> str | None:
    """Return the `sweep:NAME/ARM` for sweeps whose names end in `suffix`; None if it does not change."""
    reference = parse_reference(name)
    if reference is None or not reference.sweep or "@" in reference.sweep:
        return None
    sweep = "" if reference.sweep == spec.name else f"{reference.sweep}{suffix}"
    return f"{PREFIX}{sweep}/{reference.arm}"
