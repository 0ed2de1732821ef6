"""`ablate --completion`: completion of verbs, options, settings and names, for bash, zsh and fish."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any, get_args

from ablate.config.errors import AblateError
from ablate.config.lazy import postpone_imports

with postpone_imports():
    from ablate.cli import list as lists
    from ablate.config import merging
    from ablate.experiment import tree as trees
    from ablate.scheduler import storage
    from ablate.sweeps.spec import library

SHELLS = ("bash", "zsh", "fish")


def print_code(shell: str) -> None:
    """Print the completion code for a shell."""
    import argcomplete

    print(argcomplete.shellcode(["ablate"], shell=shell))


def complete(parser: argparse.ArgumentParser) -> None:
    """Print completions and end the process if a shell requests them; do nothing otherwise."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    verbs = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for verb in verbs.choices.values():
        for action in verb._actions:
            if completer := _COMPLETERS.get(action.metavar if isinstance(action.metavar, str) else ""):
                action.completer = completer
    argcomplete.autocomplete(parser)


def list_settings(prefix: str, **context: Any) -> list[str]:
    """Return the settings of an experiment that begin with `prefix`: paths, or after `=` the values of one path."""
    path, chosen, _ = prefix.partition("=")
    settings = dict(
        word.split("=", 1) for word in getattr(context.get("parsed_args"), "words", None) or [] if "=" in word
    )
    tree = merging.merge(trees.Experiment, trees.Experiment().to_tree(), settings)
    if chosen:
        return [f"{path}={value}" for value in _list_values(path, tree)]
    return [f"{known}=" for known in merging.iterate_paths(trees.Experiment, tree)]


def _list_values(path: str, tree: merging.Tree) -> Iterator[str]:
    registry = merging.find_registry(trees.Experiment, tree, path.split("."))
    if registry:
        yield from registry.names
        return
    *above, name = path.split(".")
    owner: Any = trees.Experiment
    for key in above:
        _, owner = merging.find_part(owner, tree, key)
        tree = tree.get(key) or {}
    field = owner.model_fields.get(name) if owner else None
    for value in get_args(field.annotation) if field else ():
        yield from [value] if isinstance(value, str) else filter(lambda word: isinstance(word, str), get_args(value))
    if field and field.annotation is bool:
        yield from ("true", "false")


def list_sweeps(prefix: str, **context: Any) -> list[str]:
    """Return the names of the sweeps that were started."""
    try:
        return [*storage.list_sweeps(storage.storage_url())]
    except AblateError:  # a store that cannot be read completes nothing
        return []


def list_lists(prefix: str, **context: Any) -> list[str]:
    """Return the lists of `ablate list`."""
    return [row["list"].rpartition(" ")[2] for row in lists.list_choices()]


def list_files(prefix: str, **context: Any) -> list[str]:
    """Return the sweeps that come with Ablate, and files."""
    import argcomplete

    return [*library.list_sweep_files(), *argcomplete.FilesCompleter(["yaml", "yml"])(prefix)]


_COMPLETERS: dict[str, Callable[..., list[str]]] = {
    "key=value": list_settings,
    "[FILE.yaml] key=value": list_settings,
    "SWEEP": list_sweeps,
    "LIST": list_lists,
    "FILE.yaml": list_files,
}
"""Argument -> the function that returns its completions."""
