"""Starts the command `ablate`. Outside of the package `ablate`, whose place another project of that name may take."""

from __future__ import annotations

import sys
from importlib.metadata import Distribution, distributions

_AGAIN = "install this one again, from its clone: pip install --force-reinstall --no-deps ."


def main() -> int:
    """Run one command and return its exit status; 2 where another project hides this one, or has taken its files."""
    others = [other for other in distributions(name="ablate") if not _is_ours(other)]
    try:
        from ablate import AblateError as AblateError  # which the other project does not have
        from ablate.cli import main
    except ImportError as error:
        if not others and error.name != "ablate":
            raise
        missing = f"ablate: ablate-sweeps is not complete, as after pip uninstall ablate; {_AGAIN}"
        print(_describe(others[0], "hides") if others else missing, file=sys.stderr)
        return 2
    if others:
        print(_describe(others[0], "shares the environment with"), file=sys.stderr)
    return main()


def _is_ours(distribution: Distribution) -> bool:
    """Return whether it is an installation or a left-over egg-info of this project from before it was ablate-sweeps."""
    return any(point.value.startswith("ablate.cli:") for point in distribution.entry_points)


def _describe(other: Distribution, does: str) -> str:
    return (
        f"ablate: the package ablate {other.version} of another project, in {other.locate_file('')}, {does} this one, "
        f"ablate-sweeps. Remove it: pip uninstall ablate; then {_AGAIN}"
    )
