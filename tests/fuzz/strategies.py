"""What the fuzzers try: configurations made of the registries' own kinds and fields, YAML, and damaged bytes."""

from __future__ import annotations

import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

import torch
import yaml
from hypothesis import strategies as st
from pydantic import BaseModel

from ablate.config.registry import Registry
from ablate.experiment.tree import Experiment
from ablate.sweeps.spec.fields import SweepFields

WHOLE = [0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 64, 100, 1000, -1, 10**6, 10**9, 10**12, 2**31, 2**32, 2**63, 10**30, 10**400]
REAL = [0.0, -0.0, 0.5, 1.0, 1.5, 1e-3, 1e-8, 1e-320, 1e300, 1.8e308, -1.0, float("inf"), float("-inf"), float("nan")]
WORDS = [
    "", " ", "auto", "none", "all", "pre", "bytes", "nowhere", "/", "/dev/null", "*.txt", "a" * 300, "a\0b", "\ud800",
    "~", "sweep:a/b", "sweep:", "bpe-300", "-x", "bpe-99999999999", "bpe-", "val/loss", "../x", "[", "{}", "it's",
    "\N{SNOWMAN}", "layers.0", "embedding", "file:///nowhere", "memory://x", "1e-3", "null", "x: y", "a.b.c",
]  # fmt: skip


def scalars() -> st.SearchStrategy[Any]:
    """Any value that YAML has but lists and mappings."""
    text = st.sampled_from(WORDS) | st.text(max_size=8)
    numbers = st.sampled_from(WHOLE) | st.sampled_from(REAL) | st.integers() | st.floats()
    return st.none() | st.booleans() | numbers | text


def anything() -> st.SearchStrategy[Any]:
    """Any value that YAML has."""
    keys = st.sampled_from(["kind", "low", "high", "values", "a", ""]) | st.text(max_size=5)
    return st.recursive(
        scalars(), lambda part: st.lists(part, max_size=3) | st.dictionaries(keys, part, max_size=3), max_leaves=5
    )


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field, mostly of its type."""
    return st.one_of(_typed(annotation), _typed(annotation), _typed(annotation), anything())


def _typed(annotation: Any) -> st.SearchStrategy[Any]:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        registries = [part for part in parts if isinstance(part, Registry)]
        return st.deferred(lambda: kinds(registries[0])) if registries else _typed(parts[0])
    if origin in (typing.Union, types.UnionType):
        return st.one_of([_typed(part) for part in parts])
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in (tuple, list):
        inner = [part for part in parts if part is not Ellipsis]
        return st.lists(st.one_of([_typed(part) for part in inner]) if inner else scalars(), max_size=3)
    if origin is dict or annotation is dict:
        names = st.sampled_from([*PATHS, "a", "b", "pre"]) | st.text(max_size=4)
        return st.dictionaries(names, _typed(parts[1]) if parts else anything(), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return st.deferred(lambda: fields(annotation))
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.sampled_from(WHOLE[:9]) | st.sampled_from(WHOLE),
        float: st.sampled_from(REAL) | st.floats(0, 1),
        bool: st.booleans(),
        str: st.sampled_from([*WORDS, *(name for registry in Registry.all.values() for name in registry.names)]),
        type(None): st.none(),
    }
    return plain.get(annotation, anything())


def _annotation(field: Any) -> Any:
    registries = [part for part in field.metadata if isinstance(part, Registry)]
    return typing.Annotated[field.annotation, registries[0]] if registries else field.annotation


@st.composite
def fields(draw: Any, cls: type[BaseModel], most: int = 4) -> dict[str, Any]:
    """Some fields of a class."""
    names = draw(st.lists(st.sampled_from(sorted(cls.model_fields)), max_size=most, unique=True))
    return {cls.model_fields[name].alias or name: draw(values(_annotation(cls.model_fields[name]))) for name in names}


@st.composite
def kinds(draw: Any, registry: Registry[Any]) -> Any:
    """A kind of a registry by its name, or with some of its fields."""
    name = draw(st.sampled_from(registry.names))
    cls = registry.kind_of(name)
    if cls is None or draw(st.booleans()):
        return name
    return {"kind": name, **draw(fields(cls))}


def _list_paths(cls: type[BaseModel]) -> dict[str, Any]:
    """Return dotted path -> annotation, of all fields of all kinds."""
    paths: dict[str, Any] = {}
    for name, field in cls.model_fields.items():
        annotation = _annotation(field)
        paths[name] = annotation
        owners = [part for part in typing.get_args(annotation) if isinstance(part, Registry)]
        inner = [owners[0][kind] for kind in owners[0]] if owners else []
        inner += [p for p in (annotation, *typing.get_args(annotation)) if isinstance(p, type)]
        for part in inner:
            if issubclass(part, BaseModel):
                for own, one in part.model_fields.items():
                    paths[f"{name}.{one.alias or own}"] = _annotation(one)
    return paths


PATHS = {path: annotation for path, annotation in _list_paths(Experiment).items() if path != "plugins"}
"""Dotted path -> the type of what stands there, of an experiment."""


@st.composite
def settings(draw: Any, most: int = 6) -> dict[str, Any]:
    """Dotted path -> value."""
    paths = draw(st.lists(st.sampled_from(sorted(PATHS)), max_size=most, unique=True))
    known = {path: draw(values(PATHS[path])) for path in paths}
    if draw(st.integers(0, 9)) == 0:
        known[draw(st.text(max_size=8))] = draw(anything())
    return known


def write_word(path: str, value: Any) -> str:
    """The `key=value` word of a setting."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).strip()
    return f"{path}={text.removesuffix('...').strip()}"


@st.composite
def sweeps(draw: Any) -> dict[str, Any]:
    """The tree of a sweep file: one that is in order, in which some parts are replaced."""
    tree: dict[str, Any] = {
        "name": "fuzz",
        "experiment": {
            "model": {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32},
            "data": {"kind": "topics", "seq_len": 32},
            "trainer": {"max_steps": 12, "batch_size": 4},
        },
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}},
        "budget": {"trials": 2},
    }
    tree["experiment"].update(draw(settings(3)))
    known = {name: field for name, field in SweepFields.model_fields.items() if name != "plugins"}
    for name in draw(st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True)):
        tree[known[name].alias or name] = draw(values(_annotation(known[name])))
    if draw(st.booleans()):
        arms = st.dictionaries(names(), settings(3), max_size=3)
        tree["arms"] = draw(arms)
    return tree


def names() -> st.SearchStrategy[str]:
    """Names of arms."""
    return st.text(min_size=1, max_size=12) | st.sampled_from(WORDS)


@dataclass(frozen=True)
class Damage:
    """A change of bytes, whichever they are."""

    how: str
    at: float
    """Where, from 0 to 1."""
    length: int
    put: bytes

    def apply(self, content: bytes) -> bytes:
        """Return the changed bytes."""
        start = int(self.at * max(0, len(content) - 1))
        before, piece, after = content[:start], content[start : start + self.length], content[start + self.length :]
        middle = {
            "cut": b"",
            "flip": bytes([piece[0] ^ (1 << self.length % 8)]) + piece[1:] if piece else b"",
            "zero": bytes(len(piece)),
            "random": self.put,
            "insert": self.put + piece,
            "twice": piece + piece,
            "swap": piece[::-1],
        }
        return before if self.how == "end" else before + middle[self.how] + after


HOWS = ("cut", "end", "flip", "zero", "random", "insert", "twice", "swap")


def damages() -> st.SearchStrategy[list[Damage]]:
    """Changes of a file."""
    one = st.builds(
        Damage, st.sampled_from(HOWS), st.floats(0, 1), st.sampled_from([1, 1, 2, 8, 100, 4096]), st.binary(max_size=16)
    )
    return st.lists(one, min_size=1, max_size=3)


def apply_all(damage: list[Damage], content: bytes) -> bytes:
    """Return the bytes after all changes."""
    for one in damage:
        content = one.apply(content)
    return content


@dataclass(frozen=True)
class Replacement:
    """A change of a nested value, whichever it is."""

    steps: tuple[float, ...]
    """Which part of each level, from 0 to 1."""
    value: Any
    """What takes its place; DROPPED: nothing."""

    def apply(self, tree: Any, depth: int = 0) -> Any:
        """Return the changed value."""
        if depth == len(self.steps) or not isinstance(tree, (dict, list)) or not tree:
            return self.value
        at = min(int(self.steps[depth] * len(tree)), len(tree) - 1)
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        key, copied = keys[at], tree.copy()
        copied[key] = self.apply(tree[key], depth + 1)
        if copied[key] is DROPPED:
            del copied[key]
        return copied


DROPPED = object()


def replacements() -> st.SearchStrategy[Replacement]:
    """Changes of a nested value: parts dropped, or replaced by anything or by a tensor."""
    value = st.just(DROPPED) | anything() | anything() | st.sampled_from(TENSORS)
    return st.builds(Replacement, st.lists(st.floats(0, 1), max_size=4).map(tuple), value)


TENSORS = [
    torch.zeros(0), torch.ones(()), torch.ones(3), torch.full((16, 16), torch.nan), torch.ones(2, 2).to_sparse(),
    torch.zeros(1).expand(10**6, 10**6), torch.ones(16, dtype=torch.int64), torch.ones(4, dtype=torch.complex64),
    torch.ones(256, 16, dtype=torch.bfloat16), torch.ones(16, dtype=torch.bool), torch.empty(16, device="meta"),
]  # fmt: skip
