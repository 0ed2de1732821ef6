"""The tasks of lm-evaluation-harness by name. Its index of all tasks takes 10 to 25 seconds, so only the folders are
indexed that declare the named tasks, groups and tags, and the members of these groups."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.config.errors import AblateError, did_you_mean
from ablate.config.extras import import_library

FOLDERS = {
    "arc_easy": "arc", "arc_challenge": "arc", "boolq": "super_glue/boolq", "hellaswag": "hellaswag",
    "lambada_openai": "lambada", "mmlu": "mmlu/default", "openbookqa": "openbookqa", "piqa": "piqa", "sciq": "sciq",
    "social_iqa": "siqa", "wikitext": "wikitext", "winogrande": "winogrande",
}  # fmt: skip
"""The harness's folder of common tasks, which need no search."""
_NAMES = re.compile(
    r"""^["']?(?:(?:task|group)["']?[ \t]*:[ \t]*(\S.*)|tag["']?[ \t]*:[ \t]*(.*(?:\n[ \t]*-[ \t].*)*))""", re.MULTILINE
)
"""The name of a task or group, or the tags of a task, one or a list, in a file of the harness."""


def index_tasks(names: Sequence[str]) -> Any:
    """Return the harness's TaskManager of these tasks, groups or tags, with all that they consist of.

    Raises AblateError for an unknown name, and without the extra `eval`.
    """
    harness: Any = import_library("lm_eval.tasks", "eval")
    root = Path(harness.__file__).parent
    folders: set[Path] = set()
    missing: Sequence[str] = names
    while more := {folder for name in missing for folder in _find_folders(root, name)} - folders:
        folders |= more
        manager = harness.TaskManager(include_path=sorted(folders), include_defaults=False)
        _join_tags(manager.task_index)
        missing = [name for name in _list_names(manager.task_index, names) if name not in manager.task_index]
    if unknown := [name for name in names if not folders or name not in manager.task_index]:
        declared = _read_declarations(root)
        guesses = "".join(did_you_mean(name, FOLDERS) or did_you_mean(name, declared) for name in unknown)
        raise AblateError(
            f"unknown task {', '.join(map(repr, unknown))}.{guesses} Common tasks: {', '.join(FOLDERS)}; lm_eval ls "
            "tasks lists all."
        )
    return manager


def list_members(entry: Any) -> Sequence[str | Mapping[str, Any]]:
    """Return what a group or tag of the index consists of: names, or settings with a `task` or `group`; nothing for a
    task."""
    if entry.kind.name == "TAG":
        return sorted(entry.tags)
    members = entry.cfg.get("task") if entry.kind.name == "GROUP" else []
    return members if isinstance(members, list) else []


def _join_tags(index: Mapping[str, Any]) -> None:
    """Give each tag the tasks of all folders: in an index of several folders it has those of the last."""
    for name, entry in index.items():
        if "TASK" in entry.kind.name:
            for tag in entry.tags:
                index[tag].tags.add(name)


def _list_names(index: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """Yield the names of all that these groups and tags consist of."""
    for name in names:
        yield name
        if name in index:
            yield from _list_names(index, [*_flatten(list_members(index[name]))])


def _flatten(members: Sequence[str | Mapping[str, Any]]) -> Iterator[str]:
    """Yield the names of the tasks and groups among the members of a group, and of a group that is defined there."""
    for member in members:
        if isinstance(member, str):
            yield member
        elif isinstance(member.get("task"), list):
            yield from _flatten(member["task"])
        elif name := member.get("task") or member.get("group"):
            yield name


def _find_folders(root: Path, name: str) -> set[Path]:
    """Return the folders of the harness in which a task, group or tag is declared."""
    return {root / FOLDERS[name]} if name in FOLDERS else _read_declarations(root).get(name, set())


@functools.cache
def _read_declarations(root: Path) -> dict[str, set[Path]]:
    """Return name of a task, group or tag -> the folders in which it is declared. Reads 14,000 small files, without
    parsing them, in about a second."""
    folders: dict[str, set[Path]] = {}
    for file in root.rglob("*"):
        if file.suffix in (".yaml", "") and file.is_file():  # without a suffix: what others include
            for names in _NAMES.findall(file.read_text(encoding="utf-8", errors="replace")):
                for name in re.findall(r"[^\s\[\],\"'#]+", " ".join(names)):
                    folders.setdefault(name, set()).add(file.parent)
    return folders
