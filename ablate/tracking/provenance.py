"""The environment of a run as tags: commit, hardware, Python and package versions."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("torch", "lightning", "torchmetrics", "timm", "optuna", "mlflow", "datasets")
ALIGNING = ("trl", "transformers", "accelerate")  # of alignments alone
COMPARED = (
    "ablate.corpus", "ablate.hardware", "ablate.processor", "ablate.precision", "ablate.compile", "ablate.threads",
    "ablate.python", "ablate.ranks", "ablate.dirty", "mlflow.source.git.commit",
    *(f"version.{package}" for package in ("ablate", *_PACKAGES, *ALIGNING)),
)  # fmt: skip
"""The tags that should be the same in all runs of a sweep; if they are not, the report says so."""


@cache
def describe_environment() -> dict[str, str]:
    """Return commit, hardware, Python and package versions as tags of a run."""
    import torch

    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else _describe_cpu()
    return {"ablate.hardware": hardware, "ablate.processor": _identify_processor(), **describe_software()}


@cache
def describe_software() -> dict[str, str]:
    """Return commit, Python and package versions, without accessing the GPU."""
    facts = {"ablate.python": platform.python_version()}
    commit = _run_git("rev-parse", "HEAD")
    if commit:
        facts["mlflow.source.git.commit"] = commit
        facts["ablate.dirty"] = str(bool(_run_git("status", "--porcelain", "--untracked-files=no"))).lower()
    facts["version.ablate"] = str(import_module("ablate").__version__)  # by its name: it stands above all floors
    return facts | read_versions(_PACKAGES)


def read_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages, as tags of a run."""
    facts = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            facts[f"version.{package}"] = version(package)
    return facts


def _run_git(*arguments: str) -> str:
    folder = Path(__file__).parent
    try:
        # without locks: a status that is cut off would leave one
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _identify_processor() -> str:
    """Return the properties by which processors of one name differ in rounding: family, model and stepping, and the
    instructions that PyTorch uses."""
    import torch

    identity: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("cpu family", "model", "stepping"):
                identity.setdefault(name.strip(), value.strip())
    words = [f"{name} {value}" for name, value in identity.items()] or [platform.processor() or platform.machine()]
    return ", ".join([*words, torch.backends.cpu.get_cpu_capability()])


def _describe_cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} x {os.cpu_count()}"
    return f"{platform.processor() or platform.machine()} x {os.cpu_count()}"
