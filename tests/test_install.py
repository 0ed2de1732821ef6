"""How the package lies in its environment: nothing in the current folder hides it."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import yaml
from sweeps.small import spec_tree

import ablate
from ablate.distributed.launching import SAFE_PATH

COMMAND = Path(sys.executable).with_name("ablate")


def run(folder, *words, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment, timeout=300)


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    (tmp_path / "ablate").mkdir()  # as beside a clone
    for folder in (tmp_path, "/"):
        told = run(folder, sys.executable, "-c", "import ablate; print(ablate.__file__)")
        assert told.stdout.strip() == ablate.__file__


def test_a_file_of_the_same_name_is_not_imported_by_a_sweep_or_its_workers(store, tiny_settings, tmp_path):
    for name in ("ablate.py", "torch.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong file')")
    (tmp_path / "ablate").mkdir()
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(spec_tree(tiny_settings)))
    done = run(tmp_path, str(COMMAND), "sweep", "small.yaml", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "the wrong file" not in done.stderr


def test_the_processes_of_a_group_do_not_look_into_the_current_folder(tmp_path):
    """What `ablate train trainer.devices=2` and a job of Slurm execute."""
    (tmp_path / "ablate.py").write_text("print('the wrong file')")
    assert "usage: ablate" in run(tmp_path, sys.executable, "-m", "ablate", "--help", **SAFE_PATH).stdout


def test_a_wheel_holds_all_that_the_package_reads(tmp_path):
    """Its sweeps are found by name, and no clone is needed."""
    root, source = Path(ablate.__file__).parents[1], tmp_path / "source"
    parts = ["pyproject.toml", "setup.py", "LICENSE", "README.md", "ablate", "sweeps"]
    source.mkdir()
    for part in parts:
        if (root / part).is_dir():
            shutil.copytree(root / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / part, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    built = run(tmp_path, *build, str(source))
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
        archive.extractall(tmp_path / "site")
    files = [file for file in (root / "ablate").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert {str(file.relative_to(root)) for file in files} <= names
    assert {f"ablate/sweep_files/{file.name}" for file in (root / "sweeps").glob("*.yaml")} <= names
    code = "from ablate.cli import main; import ablate; print(ablate.__file__); main(['list', 'sweeps'])"
    told = run(tmp_path, sys.executable, "-c", code, PYTHONPATH=str(tmp_path / "site"), COLUMNS="300").stdout
    assert told.startswith(str(tmp_path / "site"))
    assert re.search(r"^demo +demo +no +Which", told, re.MULTILINE)
