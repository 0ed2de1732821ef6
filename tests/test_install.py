"""How the package lies in its environment: nothing in the current folder hides it, and another project is told."""

import os
import re
import shutil
import subprocess
import sys
import types
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from scheduler.small import spec_tree

import ablate
import ablate_sweeps
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
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(spec_tree(tiny_settings, budget={"trials": 1})))
    done = run(tmp_path, str(COMMAND), "sweep", "small.yaml", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "the wrong file" not in done.stderr


def test_the_processes_of_a_group_do_not_look_into_the_current_folder(tmp_path):
    """What `ablate train trainer.devices=2` and a job of Slurm execute."""
    (tmp_path / "ablate.py").write_text("print('the wrong file')")
    assert "usage: ablate" in run(tmp_path, sys.executable, "-m", "ablate", "--help", **SAFE_PATH).stdout


def test_a_wheel_holds_all_that_the_package_reads(tmp_path):
    """Its sweeps are found by name, and no clone is needed."""
    root, source = Path(ablate.__file__).parents[1], tmp_path / "source"
    parts = ["pyproject.toml", "setup.py", "LICENSE", "README.md", "ablate", "ablate_sweeps.py", "sweeps"]
    source.mkdir()
    for part in parts:
        if (root / part).is_dir():
            shutil.copytree(root / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(root / part, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    built = run(tmp_path, *build, str(source))
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("ablate_sweeps-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {*archive.namelist()}
        archive.extractall(tmp_path / "site")
    files = [file for file in (root / "ablate").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert {str(file.relative_to(root)) for file in files} <= names
    assert {f"ablate/sweep_files/{file.name}" for file in (root / "sweeps").glob("*.yaml")} <= names
    code = "import ablate, ablate_sweeps; print(ablate.__file__); ablate_sweeps.main()"
    words = [sys.executable, "-c", code, "list", "sweeps"]
    told = run(tmp_path, *words, PYTHONPATH=str(tmp_path / "site"), COLUMNS="300").stdout
    assert told.startswith(str(tmp_path / "site"))
    assert re.search(r"^demo +demo +no +Which", told, re.MULTILINE)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages, first on the path, with the metadata of `ablate`, which another project has."""
    (tmp_path / "ablate-0.2.3.dist-info").mkdir()
    (tmp_path / "ablate-0.2.3.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ablate\nVersion: 0.2.3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_another_project_that_hides_the_package_is_told_with_what_removes_it(site):
    (site / "ablate").mkdir()
    (site / "ablate" / "__init__.py").write_text("class Report: ...\n")
    done = run("/", str(COMMAND), "train", PYTHONPATH=str(site))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ablate: the package ablate 0.2.3 of another project, in {site}, hides this one")
    assert "pip uninstall ablate" in done.stderr


def test_another_project_beside_the_package_is_told(site, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ablate", "--version"])
    assert ablate_sweeps.main() == 0
    told = capsys.readouterr()
    assert told.out.strip() == ablate.__version__
    assert "ablate 0.2.3 of another project" in told.err


def test_an_earlier_installation_of_ours_is_no_other_project(site, monkeypatch, capsys):
    (site / "ablate-0.2.3.dist-info" / "entry_points.txt").write_text("[console_scripts]\nablate = ablate.cli:main\n")
    monkeypatch.setattr(sys, "argv", ["ablate", "--version"])
    assert ablate_sweeps.main() == 0
    assert capsys.readouterr().err == ""


def test_a_package_that_lost_its_files_to_the_removal_of_another_is_told(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ablate", types.ModuleType("ablate"))
    assert ablate_sweeps.main() == 2
    assert "is not complete" in capsys.readouterr().err


def test_nobody_is_told_to_install_the_other_project():
    """Extras are those of pyproject.toml, and no text names them as those of `ablate`."""
    root = Path(ablate.__file__).parents[1]
    folders = (root / name for name in ("ablate", "docs", "sweeps", "benchmarks"))
    files = [root / "pyproject.toml", *root.glob("*.md"), *(file for folder in folders for file in folder.rglob("*.*"))]
    texts = {file: file.read_text() for file in files if file.suffix in (".py", ".md", ".yaml", ".toml", ".ipynb")}
    assert len(texts) > 400
    wrong = re.compile(r"(?<![\w./-])ablate\[(?!-)|pip install (-\S+ )*'?ablate\b(?!-sweeps)")
    assert not [str(file) for file, text in texts.items() if file.name != "CHANGELOG.md" and wrong.search(text)]
    extras = set(re.findall(r"^([a-z]+) = \[", texts[root / "pyproject.toml"], re.MULTILINE))
    named = {
        extra
        for text in texts.values()
        for group in re.findall(r"'\.\[([a-z,]+)\]'", text)
        for extra in group.split(",")
    }
    assert named <= extras
    assert {"cluster", "hf"} <= named


def test_each_pin_and_each_requirement_can_be_installed_on_the_oldest_python():
    """`make setup` on it asks pip for the pins, and `uv sync` resolves for every Python that is supported."""
    root = Path(ablate.__file__).parents[1]
    pins = [Requirement(line) for line in (root / "constraints.txt").read_text().splitlines() if line[:1].isalnum()]
    project = (root / "pyproject.toml").read_text()
    required = [Requirement(text) for text in re.findall(r'^    "([a-z][\w-]*[>=<][^"]+)",', project, re.M)]
    oldest = {"python_version": re.search(r'requires-python = ">=([\d.]+)', project)[1]}
    needed = {one.name: SpecifierSet(one.metadata.get("Requires-Python") or "") for one in distributions()}
    newer = {pin.name for pin in pins if oldest["python_version"] not in needed.get(pin.name, oldest["python_version"])}
    assert len(required) > 30
    assert {pin.name for pin in pins if not pin.marker or pin.marker.evaluate(oldest)} & newer == set()
    lowest = {one.name: str(one.specifier).split(">=")[1] for one in required if one.marker is None}
    least = {pin.name for pin in pins if pin.name in lowest and pin.specifier == SpecifierSet(f"=={lowest[pin.name]}")}
    assert least & newer == set()
