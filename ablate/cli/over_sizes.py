"""What `ablate sweep` and `ablate report` show of the sizes of a file together, where ablate.addons is installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ablate.config.errors import SweepError
from ablate.config.lazy import postpone_imports

if TYPE_CHECKING:
    from ablate.addons.scaling.over_sizes import SizesReport
    from ablate.sweeps.records import SweepRecord
    from ablate.sweeps.spec.sweep import Sweep

with postpone_imports():
    from ablate.addons.scaling import over_sizes

LACKING = "This installation lacks ablate.addons, which compares the sizes of a file with each other."


def report_sizes(name: str, records: Mapping[str, SweepRecord], extrapolate: str | None = None) -> SizesReport:
    """Return the report on the sizes (size -> record) of the file `name`, which is written too. Raises AblateError
    where they can't be compared."""
    if find_spec("ablate.addons") is None:
        raise SweepError(LACKING)
    return over_sizes.report_sizes(over_sizes.compare(name, records, extrapolate))


def note_plan(name: str, specs: Mapping[str, Sweep]) -> list[str]:
    """Return what is to be known before the sizes (size -> sweep) of the file `name` are run."""
    return [LACKING] if find_spec("ablate.addons") is None else over_sizes.note_plan(name, specs)
