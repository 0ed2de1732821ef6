"""Kinds from outside the package: a user's own file (`plugins: [my_norm.py]`), and installed packages that name a
module under the entry point group `ablate.plugins`.

Importing them is enough: their decorators (`@placements.register`, `@norm_layers.register`, ...) add to the registries,
and from there a kind appears in YAML, on the command line, in every model family and in sweeps.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.formatting import join_words
from ablate.config.registry import Catalogue, NameTaken, Registry

logger = logging.getLogger(__name__)

GROUP = "ablate.plugins"
PAPERS = "ablate.addons.papers"
"""Ablate's own plugin, which is loaded like an installed one where the addons are installed."""


@dataclass(frozen=True)
class Plugin:
    """A file of the user: read, and run when it is loaded."""

    real: str
    """Its real path."""
    raw: bytes
    """Its content, which is UTF-8."""

    @property
    def module(self) -> str:
        """The name of its module, unique for each path."""
        stem = re.sub(r"\W", "_", Path(self.real).stem)
        return f"ablate_plugin_{stem}_{hashlib.sha256(self.real.encode()).hexdigest()[:8]}"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the content, hexadecimal."""
        return hashlib.sha256(self.raw).hexdigest()


@dataclass(frozen=True)
class _Guard:
    """A limit on the files that may be run while a checkpoint of somebody else is opened (see `restrict`)."""

    is_known: Callable[[str], bool]
    source: str
    refusal: str


_files: dict[str, Plugin] = {}  # by real path
_guards: list[_Guard] = []  # of the whole process: a thread that is begun within one may run no more than others
_begun: set[str] = set()  # entry points that are loaded, or being loaded


def merge_plugins(*settings: Any) -> list[Any]:
    """Return the files of several `plugins` settings together, each once: later settings add files and remove none."""
    files: list[Any] = []
    for setting in settings:
        listed = setting if isinstance(setting, (list, tuple)) else [] if setting is None else [setting]
        files += [file for file in listed if file not in files]
    return files


def load(files: Iterable[Any] = (), path: str = "plugins", source: str = "the configuration") -> dict[str, Plugin]:
    """Load the installed plugins and then `files`, and return the latter: file as given -> plugin. A file that is
    loaded already is only loaded again if its content has changed. Entries that are not text are left to validation.
    Raises ConfigError for the setting `path` of `source`, with everything that cannot be loaded.
    """
    plugins: dict[str, Plugin] = {}
    problems = [problem for point in _points() if (problem := _load_installed(point))]
    for file in files:
        if isinstance(file, str):
            plugin = _read(file)
            reason = plugin if isinstance(plugin, str) else _refuse(file, plugin) or _run(file, plugin)
            if reason:
                problems.append(Problem(path, reason))
            elif isinstance(plugin, Plugin):
                plugins[file] = plugin
    if problems:
        raise ConfigError(problems, _guards[-1].source if _guards else source)
    return plugins


_STORED = (
    "no run of this store has used the present content of that file (SHA-256 {sha256}). It was not run. If you trust "
    "it, add: plugins={file}"
)


@contextlib.contextmanager
def restrict(is_known: Callable[[str], bool], source: str, refusal: str = _STORED) -> Iterator[None]:
    """Within this context `load` runs only what this process has loaded before, and files whose SHA-256 `is_known`:
    `source`, such as a checkpoint, may be somebody else's, and must not run an arbitrary file of the current folder,
    wherever it names it. For any other file `load` raises ConfigError, with the `refusal`.
    """
    _guards.append(_Guard(is_known, source, refusal))
    try:
        yield
    finally:
        _guards.pop()


def _refuse(file: str, plugin: Plugin) -> str:
    """Return the reason why a file may not be run here; "" if it may."""
    for guard in () if _files.get(plugin.real) == plugin else _guards:
        if not guard.is_known(plugin.sha256):
            return f"it needs the plugin {file}, and {guard.refusal.format(file=file, sha256=plugin.sha256)}"
    return ""


def list_named(tree: Mapping[Any, Any]) -> list[str]:
    """Return all files that the nested or dotted mapping `tree` names as plugins at any level, each once."""
    return list(dict.fromkeys(_iterate_named(tree, inside=False)))


def read_contents(files: Iterable[str]) -> dict[str, bytes]:
    """Return file -> its present content, without running it. Raises ConfigError if one cannot be read."""
    read = {file: _read(file) for file in files}
    if problems := [Problem("plugins", reason) for reason in read.values() if isinstance(reason, str)]:
        raise ConfigError(problems)
    return {file: plugin.raw for file, plugin in read.items() if isinstance(plugin, Plugin)}


def hash_contents(files: Iterable[str]) -> dict[str, str]:
    """Return file -> SHA-256 of its present content, without running it. Raises ConfigError if one cannot be read."""
    return {file: hashlib.sha256(raw).hexdigest() for file, raw in read_contents(files).items()}


def hash_files(files: Iterable[str]) -> dict[str, str]:
    """Return file -> SHA-256 of its present content. Raises ConfigError if one cannot be loaded."""
    return {file: plugin.sha256 for file, plugin in load(files).items()}


def find_loaded(sha256: str) -> str | None:
    """Return the path of a loaded file with this SHA-256; None if there is none."""
    return next((real for real, plugin in _files.items() if plugin.sha256 == sha256), None)


def find(name: str, files: Iterable[str]) -> Any:
    """Return the object FILE.NAME of one of the plugin `files`, or MODULE.NAME of a loaded module of an installed
    plugin; None if there is none. Imports nothing."""
    module, _, last = name.rpartition(".")
    modules = [plugin.module for file, plugin in load(files).items() if Path(file).stem == module]
    if _find_root(module) in [_find_root(point.module) for point in _points() if point.module != PAPERS]:
        modules.append(module)
    return next((getattr(sys.modules[one], last, None) for one in modules if one in sys.modules), None)


def read_copies(files: Iterable[str]) -> dict[str, str]:
    """Return name of a file beside a stored configuration -> its content, so that the stored files are enough to repeat
    a run."""
    copies = {}
    for file, plugin in load(files).items():
        below = [part for part in Path(file).parts if part not in (os.sep, os.pardir, "~")]  # not out of the folder
        copies["/".join(below)] = plugin.raw.decode()
    return copies


def list_installed() -> dict[str, str]:
    """Return the installed packages that provide plugins: name -> version."""
    return {point.dist.name: point.dist.version for point in _points() if point.dist}


def describe_origin(module: str) -> str:
    """Return the origin of the kinds of a module: ablate, the file of a plugin, or an installed package with its
    version."""
    for real, plugin in _files.items():
        if plugin.module == module:
            return os.path.relpath(real) if Path(real).is_relative_to(Path.cwd().resolve()) else real
    root = _find_root(module)
    packages = (point.dist for point in _points() if _find_root(point.module) == root and point.dist)
    return next((f"{package.name} {package.version}" for package in packages), root)


# ---------------------------------------------------------------------------------------------------- files


_COPIES = " A run that used it has a copy among its artifacts in MLflow, with its config.yaml."


def _read(file: str) -> Plugin | str:
    """Return the plugin in `file`, or the reason why it cannot be read."""
    where = Path(os.path.expanduser(file))
    try:
        raw = where.read_bytes()
        raw.decode()
    except FileNotFoundError:
        near = did_you_mean(where.name, (f.name for f in where.parent.glob("*.py"))) if where.parent.is_dir() else ""
        there = "" if where.is_absolute() else f" in {Path.cwd()}"
        return f"there is no file {file}{there}.{near or _COPIES}"
    except (OSError, ValueError) as error:  # not UTF-8, or a path with a NUL character
        return f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
    return Plugin(os.path.realpath(where), raw)


def _iterate_named(value: Any, inside: bool) -> Iterator[str]:
    """Yield the texts in `value` below a key `plugins`, or all of its texts if `value` is `inside` such a key."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _iterate_named(item, inside or "plugins" in str(key).split("."))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _iterate_named(item, inside)
    elif inside and isinstance(value, str):
        yield value


def _run(file: str, plugin: Plugin) -> str:
    """Run a plugin, unless its present content is loaded; return the reason why it cannot be loaded, or ""."""
    real, known = plugin.real, _files.get(plugin.real)
    if known == plugin:
        return ""
    module = types.ModuleType(plugin.module)
    module.__file__ = real
    _forget(plugin)  # an earlier version
    before, registries = _registered(), {*Registry.all}
    _files[real], sys.modules[plugin.module] = plugin, module
    try:
        exec(compile(plugin.raw, real, "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        problem = f"{file}{_line(error, real)}: {_words(error)}"
    else:
        if (
            known
            or _has_named_class(module)
            or any(name not in before for name in _registered() if name[0] in registries or name[2] == plugin.module)
        ):
            return ""
        problem = f"{file} registers nothing. {_explain_registering()}"
    _forget(plugin)
    del _files[real], sys.modules[plugin.module]
    return problem


def _has_named_class(module: types.ModuleType) -> bool:
    """Return whether `module` has a callback or a logger that Lightning itself does not have: an experiment can name
    it."""
    return any(
        (base.__module__.partition(".")[0], base.__name__) in (("lightning", "Callback"), ("lightning", "Logger"))
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__.partition(".")[0] != "lightning"
        for base in value.__mro__
    )


def _registered() -> set[tuple[str, str, str]]:
    """Return (registry, name, module it is from) of all kinds, presets and entries of catalogues."""
    kinds = {(r.name, name, r.find_module(name)) for r in Registry.all.values() for name in r.names}
    return kinds | {(c.noun, name, c.find_module(name)) for c in Catalogue.all for name in c}


def _explain_registering() -> str:
    """Return a sentence on what makes a file a plugin."""
    kinds = join_words([registry.name for registry in Registry.all.values()], "or")
    example = "`@placements.register` above `class Mine(Placement):`, both from ablate.norms"
    more = "it can also have a callback or a logger of Lightning"
    return f"It can register a kind of {kinds}, by the decorator of that registry: {example}; {more}"


def _forget(plugin: Plugin) -> None:
    for registry in Registry.all.values():
        registry.forget(plugin.module)
    for catalogue in Catalogue.all:
        catalogue.forget(plugin.module)


def _line(error: BaseException, real: str) -> str:
    """Return ', line N' with the line of the file that raised `error`."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == real]
    if isinstance(error, SyntaxError) and error.filename == real:
        lines.append(error.lineno)
    return f", line {lines[-1]}" if lines and lines[-1] else ""


def _words(error: BaseException) -> str:
    """Return an error in one line, with plugins named by their files."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    text = (text.strip().splitlines() or ["no message"])[0]
    for real, plugin in _files.items():
        for name in re.findall(rf"{plugin.module}\.([\w.<>]*[\w>])", text):
            text = text.replace(f"{plugin.module}.{name}", f"{name} in {real}")
        text = text.replace(plugin.module, real)
    return text if isinstance(error, NameTaken) else f"{type(error).__name__}: {text}"


# ---------------------------------------------------------------------------------------------------- packages


@cache
def _points() -> tuple[EntryPoint, ...]:
    own = [EntryPoint("papers", PAPERS, GROUP)] if find_spec(PAPERS.rpartition(".")[0]) else []
    return (*own, *entry_points(group=GROUP))


def _load_installed(point: EntryPoint) -> Problem | None:
    """Import the module of an entry point, once, and return its problem, if any."""
    key = f"{point.name} = {point.value}"
    if key in _begun:
        return None
    _begun.add(key)
    try:
        point.load()
    except (Exception, SystemExit) as error:
        _begun.discard(key)
        owner = f"{point.dist.name} {point.dist.version}" if point.dist else "unknown"
        way = f"Repair or uninstall {point.dist.name}." if point.dist else "Repair or uninstall it."
        return Problem("", f"the installed package {owner} has a plugin ({key}) that fails: {_words(error)}. {way}")
    root = _find_root(point.module)
    if not any(_find_root(module) == root for _, _, module in _registered()):
        owner = describe_origin(point.module)
        logger.warning(f"The plugin {key} of {owner} registers nothing. {_explain_registering()}.")
    return None


def _find_root(module: str) -> str:
    return module.partition(".")[0]
