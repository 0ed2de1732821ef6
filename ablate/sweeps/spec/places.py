"""Where a sweep file sets what an experiment has."""

from __future__ import annotations

from ablate.sweeps.spec.fields import SweepFields


def locate(sweep: SweepFields, arm: str, path: str) -> str:
    """Return the path in the file at which a path of an arm's experiment is set."""
    settings = sweep.all_arms[arm].settings
    own = any(path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.") for key in settings)
    return f"arms.{arm}.{path}" if own else f"experiment.{path}"
