"""The name by which a person can start this program again."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def name_program() -> str:
    """Return "ablate", or the path that it was started by where "ablate" on PATH is another program or none, as in a
    virtual environment that is not active."""
    started = Path(sys.argv[0])
    if started.name != "ablate" or not started.is_file():  # a notebook, a script, python -m ablate
        return "ablate"
    on_path = shutil.which("ablate")
    return "ablate" if on_path and started.samefile(on_path) else sys.argv[0]
