"""How the package lies in its environment."""

import subprocess
import sys
from pathlib import Path

import ablate


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path: Path) -> None:
    (tmp_path / "ablate").mkdir()  # as beside a clone
    found = subprocess.run(
        [sys.executable, "-c", "import ablate; print(ablate.__file__)"], cwd=tmp_path, capture_output=True, text=True
    )
    assert found.stdout.strip() == ablate.__file__
