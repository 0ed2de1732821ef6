"""What pyproject.toml cannot say: the wheel holds the sweep files, which lie beside the package in the repository."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithSweeps(build_py):
    """Copies `sweeps/*.yaml` into the package that is built; an editable install reads them where they are."""

    def run(self) -> None:
        """Build the package."""
        super().run()
        if not self.editable_mode:
            folder = Path(self.build_lib, "ablate", "sweep_files")
            folder.mkdir(parents=True, exist_ok=True)
            for file in sorted(Path("sweeps").glob("*.yaml")):
                shutil.copy(file, folder)


setup(cmdclass={"build_py": BuildWithSweeps})
