"""The files that other programs read of the repository: citation, hooks, workflows, containers, templates."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

import ablate
from ablate.cli import build_parser
from ablate.config.yaml import parse_overrides
from ablate.experiment.tree import Experiment
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.library import find_sweep_file

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def list_steps(file):
    jobs = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    return {name: job["steps"] for name, job in jobs.items()}


def test_the_citation_is_of_this_version_and_invents_nobody():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert (citation["version"], citation["license"]) == (ablate.__version__, "Apache-2.0")
    assert citation["authors"] == [{"name": "The Ablate authors"}]
    assert not {"doi", "identifiers", "orcid", "url"} & set(citation)


def test_the_hook_runs_what_make_lint_runs():
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    (hook,) = repository["hooks"]
    assert (repository["repo"], hook["entry"], hook["pass_filenames"]) == ("local", "make lint", False)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_pin_actions_by_major_version_and_need_no_secrets(file):
    steps = [step for steps in list_steps(file).values() for step in steps]
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    text = file.read_text(encoding="utf-8")
    assert "secrets." not in text
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


def test_linux_runs_what_ci_runs_and_macos_commands_that_exist():
    jobs = list_steps(ROOT / ".github" / "workflows" / "ci.yml")
    assert {"run": ".ci/run"} in jobs["linux"]
    commands = [step["run"] for step in jobs["macos"] if step.get("run", "").startswith("ablate ")]
    assert len(commands) == 3
    for command in commands:
        given = build_parser().parse_args(shlex.split(command)[1:])
        if given.verb == "train":
            assert Experiment.from_mapping(parse_overrides(given.words)).trainer.max_steps == 20


def test_the_container_runs_the_demo():
    lines = [line for line in read("Dockerfile").splitlines() if line and not line.startswith("#")]
    assert lines[-1].startswith("CMD ")
    words = json.loads(lines[-1].removeprefix("CMD "))
    assert build_parser().parse_args(words[1:]).verb == "sweep"
    assert load_sweeps(find_sweep_file(words[2])[0])[0].name == "demo"
    assert len(re.findall("^# ARG TORCH_INDEX=.*CUDA", read("Dockerfile"), re.M)) == 1
    ignored = read(".dockerignore").split()
    needed = ("ablate", "ablate_sweeps.py", "sweeps", "setup.py", "pyproject.toml", "README.md", "LICENSE")
    assert not set(needed) & set(ignored)


def test_the_development_container_is_set_up_by_make():
    container = json.loads(read(".devcontainer/devcontainer.json"))
    assert container["postCreateCommand"] == "make setup"
    assert re.search("^setup:", read("Makefile"), re.M)


@pytest.mark.parametrize("name", ["bug.md", "norm.md"])
def test_templates_have_what_github_shows(name):
    _, head, body = read(f".github/ISSUE_TEMPLATE/{name}").split("---\n", 2)
    assert {"name", "about"} <= set(yaml.safe_load(head))
    assert len(body.split()) < 100
