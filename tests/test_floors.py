"""The floors of the package: the core works without addons, the rooms are few, modules are imported at the top."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec, resolve_name
from pathlib import Path

import pytest
import yaml

import ablate

PACKAGE = Path(ablate.__file__).parent
MOST_ROOMS, MOST_FLAT, MOST_IN_FUNCTIONS = 20, 4, 30

SCRIPT = """
import contextlib, io, json, sys
from pathlib import Path

import ablate
from ablate.cli import main
from ablate.config.errors import ConfigError
from ablate.experiment.extensions import load_extension
from ablate.scheduler.preparation import begin_session
from ablate.scheduler.storage import storage_url
from ablate.scheduler.worker import Worker
from ablate.sweeps.spec.sweep import Sweep


def run(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


def refuse(part):
    try:
        load_extension(part)
    except ConfigError as error:
        return str(error)


if __name__ == "__main__":
    queue, _ = begin_session(Sweep.load("sweep.yaml"), storage_url(), False, 1)
    Worker(queue.full_name, storage_url()).run()  # in this process, which has imported everything
    Path("answers.json").write_text(json.dumps({
        "package": ablate.__file__,
        "train": run("train", "tiny.yaml"),
        "sweep": run("sweep", "sweep.yaml"),
        "report": run("report", "small", "--json"),
        "start": run("train", "tiny.yaml", "warm_start.from=RUN", "warm_start.copy=all"),
        "tasks": run("train", "tiny.yaml", "evaluation.tasks=piqa"),
        "export": run("export", "RUN", "--to", "safetensors", "--output", "exported"),
        "gru": run("config", "model=gru"),
        "summed": run("config", "norm=summed_inputs"),
        "words": run("diagnose", "RUN", "--what", "word_similarity"),
        "refused": {part: refuse(part) for part in ("warm_start", "lora", "align", "evaluation.tasks")},
    }))
"""


@pytest.fixture
def core(tmp_path, store, tiny_settings):
    """A folder with the package without its addons, and the answers of its commands."""
    shutil.copytree(PACKAGE, tmp_path / "ablate", ignore=shutil.ignore_patterns("__pycache__", "addons"))
    settings = {**tiny_settings, "trainer": {**tiny_settings["trainer"], "max_steps": 4, "val_check_interval": 2}}
    spec = {
        "name": "small", "experiment": settings, "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        "search": {"optimizer.lr": [1e-3]}, "budget": {"trials": 1},
    }  # fmt: skip
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "core.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "core.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return tmp_path, json.loads((tmp_path / "answers.json").read_text())


def test_the_core_trains_sweeps_and_reports_without_addons_and_says_what_is_left_out(core):
    folder, answers = core
    assert Path(answers["package"]).parent == folder / "ablate"
    for verb in ("train", "sweep", "report"):
        assert answers[verb]["status"] == 0, answers[verb]
    assert json.loads(answers["report"]["out"])["sweep"] == "small"
    for part, words in (("start", "warm_start"), ("tasks", "evaluation.tasks"), ("export", "ablate.addons")):
        assert answers[part]["status"] == 2
        assert "Traceback" not in answers[part]["err"]
        assert words in answers[part]["err"]
        assert "which is not installed" in answers[part]["err"]
    for part, words in (
        ("gru", "unknown model 'gru'. Accepted: llama, vit"), ("summed", "Accepted with: none here"),
        ("words", "unknown measurement 'word_similarity'. Accepted: angular"),
    ):  # fmt: skip
        assert answers[part]["status"] == 2
        assert words in " ".join(answers[part]["err"].split())
    for part, text in answers["refused"].items():
        room = "ablate.addons.evaluation" if part.startswith("evaluation") else "ablate.addons.post_training"
        assert f"{part}: needs the package {room}" in text
        assert text.rstrip(".").endswith("which is not installed")


READ = (
    "ablate", "ablate_sweeps.py", "benchmarks", "docs", "sweeps", "tests", "pyproject.toml", "setup.py", "mkdocs.yml",
    "constraints.txt", "Makefile", "README.md", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE",
    "CITATION.cff", "Dockerfile", ".dockerignore", ".pre-commit-config.yaml", ".github", ".devcontainer",
)  # fmt: skip
"""What the tests read, of the checkout."""
FEWEST = 5000  # of the core's tests


@pytest.mark.chaos
def test_the_core_passes_its_own_tests_where_the_addons_were_deleted(tmp_path):
    copy = tmp_path / "core"
    copy.mkdir()
    leave_out = shutil.ignore_patterns("__pycache__", "addons", ".*")
    for name in READ:
        source = PACKAGE.parent / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=leave_out)
        else:
            shutil.copy(source, copy / name)
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-rfEs"]
    if find_spec("xdist"):
        words += ["-n", str(os.cpu_count()), "--dist", "worksteal"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "ABLATE_"))}
    environment = {**inherited, "PYTHONPATH": str(copy)}
    done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert "the addons were deleted" in done.stdout  # what was tested is the copy
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= FEWEST, done.stdout[-2000:]


def test_the_rooms_at_the_top_are_few():
    entries = [path for path in PACKAGE.iterdir() if path.name not in ("__init__.py", "__main__.py")]
    flat = [path.stem for path in entries if path.suffix == ".py"]
    rooms = [path.name for path in entries if (path / "__init__.py").exists()]
    assert len(flat) <= MOST_FLAT, flat
    assert len(flat) + len(rooms) <= MOST_ROOMS, sorted(flat + rooms)


def imports_in_functions(file):
    """The lines of `file` that import a module of ours within a function."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {id(node): node for function in ast.walk(tree) if isinstance(function, functions)
              for node in ast.walk(function) if isinstance(node, (ast.Import, ast.ImportFrom))}  # fmt: skip
    package = ".".join(file.relative_to(PACKAGE.parent).parent.parts)
    for node in inside.values():
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            modules = [resolve_name("." * node.level + (node.module or ""), package)]
        if any(module.split(".")[0] == PACKAGE.name for module in modules):
            yield f"{file.relative_to(PACKAGE)}:{node.lineno} {ast.unparse(node)}"


def test_modules_are_imported_at_the_top_but_for_heavy_ones():
    lines = [line for file in sorted(PACKAGE.rglob("*.py")) for line in imports_in_functions(file)]
    assert len(lines) <= MOST_IN_FUNCTIONS, "\n".join(lines)


def private_names_of_optuna(file):
    """The lines of `file` that import a private module of Optuna, or use a private attribute of its objects."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and re.match(r"optuna\b.*\._", node.module or ""):
            yield node.lineno
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE:
            yield node.lineno


PRIVATE = {"_storage", "_study_id", "_trial_id", "_backend", "_cached_frozen_trial", "_fixed_params", "_suggest"}


def test_what_optuna_calls_private_is_used_in_one_file():
    own = PACKAGE / "scheduler"
    files = {file.name for file in own.rglob("*.py") if {*private_names_of_optuna(file)} - own_attributes(file)}
    files |= {
        file.name
        for file in PACKAGE.rglob("*.py")
        if re.search(r"optuna\.\S*\._|optuna\.\S+ import _", file.read_text())
    }
    assert files == {"optuna_private.py"}


def own_attributes(file):
    """The lines of attributes that objects of ours have of the same name."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {n.lineno for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == "self"}
