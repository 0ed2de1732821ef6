"""The code of a model's modules as one self-contained file: their `forward` and its dependencies, without constructors.

Copying the modules' files instead would ship 21 files that need pydantic, since their constructors take configs, and a
plugin's file would have to be rewritten. One file with the code that runs is six times smaller, and only needs torch
and transformers.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ablate.config.errors import AblateError
from ablate.config.registry import Registry

PLAIN = (bool, int, float, str, type(None))


class Sources:
    """Collects the code of module classes and of their dependencies. The file has `torch`, `nn` and the names `taken`
    already."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self.classes: dict[str, type[nn.Module]] = {}  # by their names in the description
        self.used: dict[type[nn.Module], set[str]] = {}  # attributes that the methods of a class read
        self._texts: dict[str, str] = {}  # global name -> code
        self._imports: dict[str, str] = {}
        self._owners: dict[str, Any] = {}
        self._entries: dict[type[nn.Module], str] = {}

    def add(self, cls: type[nn.Module], entry: str = "forward") -> str:
        """Collect the code of a module class from the method `entry` on; return its name in the description."""
        if not _is_ours(cls):
            name = f"{cls.__module__}.{cls.__qualname__}"
            self.classes[name] = cls
            return name
        self._entries[cls] = entry
        self._collect(cls.__name__, cls)
        self.classes[cls.__name__] = cls
        return cls.__name__

    def format_code(self) -> str:
        """Return the imports and classes."""
        return "\n\n\n".join(["\n".join(sorted(self._imports.values())), *self._texts.values()]) + "\n"

    def format_table(self) -> str:
        """Return `CLASSES` of the file."""
        entries = []
        for name, cls in sorted(self.classes.items()):
            path = name if _is_ours(cls) else f"nn.{cls.__name__}" if getattr(nn, cls.__name__, 0) is cls else name
            if path == name and not _is_ours(cls):
                self._imports[name] = f"import {cls.__module__}"
            entries.append(f'    "{name}": {path},\n')
        return "CLASSES: dict[str, type[nn.Module]] = {\n" + "".join(entries) + "}"

    def _collect(self, name: str, value: Any) -> None:
        """Collect the value of a global name. Raises AblateError if its value cannot be written as code."""
        if name in self.taken or self._owners.get(name, value) is not value:
            raise AblateError(f"Two different things are called {name} in the model's code; rename one of them.")
        if name in self._owners:
            return
        self._owners[name] = value
        if value in (torch, nn):
            return
        if isinstance(value, types.ModuleType):
            whole = value.__name__
            self._imports[name] = f"import {whole}" if whole == name else f"import {whole} as {name}"
        elif inspect.isfunction(value) and _is_ours(value):
            self._collect_globals(value)  # its default values have to stand before it
            self._texts[name] = inspect.getsource(value).rstrip()
        elif inspect.isclass(value) and _is_ours(value) and issubclass(value, nn.Module):
            self._texts[name] = self._format_class(value)
        elif inspect.isclass(value) and _is_ours(value):  # such as a function with a gradient of its own
            self._texts[name] = inspect.getsource(value).rstrip()
            for function in filter(None, map(_find_function, vars(value).values())):
                self._collect_globals(function)
        elif isinstance(value, PLAIN):
            self._texts[name] = f"{name} = {value!r}"
        elif getattr(value, "__module__", None) and not _is_ours(value):
            self._imports[name] = f"from {value.__module__} import {value.__qualname__} as {name}"
        else:
            raise AblateError(f"The model's code uses {name} ({type(value).__name__}), which cannot be exported.")

    def _format_class(self, cls: type[nn.Module]) -> str:
        """Return the class with the method that it is entered by and those that this calls."""
        used = self.used[cls] = set()
        methods: list[str] = []
        todo, done = [self._entries.get(cls, "forward")], set()
        while todo:
            method = todo.pop()
            done.add(method)
            function = _find_function(inspect.getattr_static(cls, method, None))
            if function is None:
                continue
            methods.append(textwrap.indent(textwrap.dedent(inspect.getsource(function)).rstrip(), "    "))
            attributes = self._collect_globals(function)
            used |= attributes
            todo += sorted(attributes - done - set(todo))
        document = inspect.cleandoc(cls.__doc__ or cls.__name__)
        document = textwrap.indent(f'"""{document}{chr(10) * (chr(10) in document)}"""', "    ")
        return "\n\n".join([f"class {cls.__name__}(nn.Module):\n{document}", *methods])

    def _collect_globals(self, function: types.FunctionType) -> set[str]:
        """Collect the globals of a function; return the attributes that it reads."""
        code, names, attributes = function.__code__, function.__globals__, set()
        for name in _list_default_names(function):
            if name in names:
                self._collect(name, names[name])
        for part in _list_code(code):
            for step in dis.get_instructions(part):
                if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in names:
                    self._collect(step.argval, names[step.argval])
                elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "super":
                    raise AblateError(f"The model's code calls super() in {code.co_name}, which cannot be exported.")
                elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    attributes.add(step.argval)
        return attributes


def describe_module(module: nn.Module, sources: Sources, entry: str = "forward") -> dict[str, Any]:
    """Return a module as plain values: class, attributes, shapes of parameters and buffers, children.

    Raises AblateError for an attribute that the method `entry` reads and that is no plain value.
    """
    cls = type(module)
    tree: dict[str, Any] = {"class": sources.add(cls, entry)}
    used = sources.used.get(cls, set())
    kept = {name: value for name, value in vars(module).items() if name not in _EVERY}
    for name in used - set(kept):  # attributes of the class, but for methods, which are in its code
        value = inspect.getattr_static(cls, name, None)
        if value is not None and not hasattr(nn.Module, name) and _find_function(value) is None:
            kept[name] = value
    plain = {name: value for name, value in kept.items() if _is_plain(value)}
    if missing := sorted((set(kept) - set(plain)) & used | module._non_persistent_buffers_set):
        text = f"{cls.__name__} keeps {', '.join(missing)}, which is not a number, text or list of these"
        raise AblateError(f"{text}, nor in the checkpoint; it cannot be exported.")
    parts = {
        "attributes": plain,
        "parameters": {name: None if p is None else list(p.shape) for name, p in module._parameters.items()},
        "buffers": {
            name: [list(b.shape), str(b.dtype).removeprefix("torch.")]
            for name, b in module._buffers.items()
            if b is not None
        },
        "children": {
            name: describe_module(child, sources) for name, child in module._modules.items() if child is not None
        },
    }
    return tree | {name: part for name, part in parts.items() if part}


_EVERY = set(vars(nn.Module()))  # attributes that every module has


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(part) for key, part in value.items())
    return isinstance(value, PLAIN)


def _is_ours(value: Any) -> bool:
    """Return whether it belongs to this package or to a plugin, so that the file must contain it."""
    root = value.__module__.partition(".")[0]
    return root in {cls.__module__.partition(".")[0] for cls in _list_kinds()} and root != torch.__name__


def _list_kinds() -> Iterable[type]:
    return [registry[kind] for registry in Registry.all.values() for kind in registry]


def _find_function(member: Any) -> types.FunctionType | None:
    """Return the function behind a method or a property, if it belongs to this package or a plugin."""
    if isinstance(member, property):
        member = member.fget
    member = getattr(member, "__func__", member)
    return member if inspect.isfunction(member) and _is_ours(member) else None


def _list_default_names(function: types.FunctionType) -> list[str]:
    """Return the names in the default values of a function's arguments, which its code does not show."""
    if not (function.__defaults__ or function.__kwdefaults__):
        return []
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    defaults = [*tree.args.defaults, *filter(None, tree.args.kw_defaults)]
    return [part.id for value in defaults for part in ast.walk(value) if isinstance(part, ast.Name)]


def _list_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_code(constant)
