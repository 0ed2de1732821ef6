"""Facts about a run's environment and cost, such as commit, hardware, Python and package versions: a few are tags of
the run, all are in an artifact.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ablate.tracking.connection import PLUGINS, client, explain_errors
from ablate.tracking.paths import tracking_uri
from ablate.tracking.tracker import Tracker

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

    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else describe_cpu()
    return {"ablate.hardware": hardware, "ablate.processor": _identify_processor(), **describe_software()}


@cache
def describe_software() -> dict[str, str]:
    """Return commit, Python and package versions, without accessing the GPU."""
    facts = {"ablate.python": platform.python_version(), **describe_commit(Path(__file__).parent)}
    facts["version.ablate"] = str(import_module("ablate").__version__)  # by its name: it stands above all layers
    return facts | read_versions(_PACKAGES)


@cache
def describe_commit(folder: Path) -> dict[str, str]:
    """Return the commit of the git repository that `folder` is in, and whether its files differ from it; nothing
    without one."""
    if not (commit := _run_git(folder, "rev-parse", "HEAD")):
        return {}
    dirty = bool(_run_git(folder, "status", "--porcelain", "--untracked-files=no"))
    return {"mlflow.source.git.commit": commit, "ablate.dirty": str(dirty).lower()}


def read_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages, as tags of a run."""
    facts = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            facts[f"version.{package}"] = version(package)
    return facts


def _run_git(folder: Path, *arguments: str) -> str:
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


def describe_cpu() -> str:
    """Return the name of the processor and the number of its cores."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} x {os.cpu_count()}"
    return f"{platform.processor() or platform.machine()} x {os.cpu_count()}"


FILE = "environment.json"
SHOWN = frozenset(
    (
        "ablate.hardware", "ablate.precision", "ablate.parameters", "ablate.checkpoint", "ablate.folder", "ablate.copy",
        "mlflow.source.git.commit", PLUGINS,
    )
)  # fmt: skip
"""Facts that are tags as well: those that distinguish runs at a glance, and those that are searched by tag."""


def pick_shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that are tags of a run."""
    return {key: value for key, value in facts.items() if key in SHOWN}


def log_facts(tracker: Tracker, facts: Mapping[str, Any]) -> None:
    """Store all facts as the artifact of the run, replacing earlier ones."""
    texts = {key: str(value) for key, value in facts.items()}
    tracker.log_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n", FILE)


def read_texts(run_id: str, file: str) -> dict[str, str]:
    """Return the texts by name in a JSON artifact of a run; none if it has no such artifact. Raises StoreError."""
    with explain_errors(tracking_uri()):
        if not any(item.path == file for item in client().list_artifacts(run_id)):
            return {}
        text = Path(client().download_artifacts(run_id, file)).read_text(encoding="utf-8")
    texts: dict[str, str] = json.loads(text)
    return texts
