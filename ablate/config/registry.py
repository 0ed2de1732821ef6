"""The base class of every configuration, and the registries behind its discriminated unions.

A `Registry` is the set of kinds that one part of an experiment can have. It is used in an annotation,

    norm: Annotated[Placement, placements]

and validates a value (a mapping with a `kind`, the name of a kind, the name of a preset, or an instance) into the class
registered for that kind. Looking the class up at validation time, rather than in a fixed `Union`, is what lets a kind
from a user's own file appear in YAML, on the command line and in the JSON schema.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Generic, TypeVar, get_args

from pydantic import (
    GetCoreSchemaHandler,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import PydanticCustomError, core_schema

from ablate.config.base import Kind
from ablate.config.errors import did_you_mean

T = TypeVar("T", bound=Kind)
C = TypeVar("C", bound=type[Kind])
Item = TypeVar("Item")
Added = TypeVar("Added")


class NameTaken(ValueError):  # noqa: N818 - it says what is the case
    """A kind or a preset has a name that the registry has given to another."""


class Registry(Generic[T]):
    """The kinds of one part of the configuration, by name.

    Args:
        name: what a kind is called in messages, e.g. "placement".
        base: the class that all kinds inherit.
        default: the kind if none is given.
        keeps: whether the fields that two kinds inherit from one class stay when the kind changes, because they mean
            the same in both.
    """

    all: ClassVar[dict[str, Registry[Any]]] = {}

    def __init__(self, name: str, base: type[T], default: str | None = None, keeps: bool = True) -> None:
        self.name, self.base, self.default, self.keeps = name, base, default, keeps
        self._kinds: dict[str, type[T]] = {}
        self._presets: dict[str, dict[str, Any]] = {}
        self._preset_modules: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        """Preset -> a note on it."""
        self.look_up: Callable[[str], Mapping[str, Any] | None] | None = None
        """Returns the fields that a plain string stands for which is neither a kind nor a preset, such as the name of a
        library's model; None if there are none. No function: there are no such strings."""
        Registry.all[name] = self

    def register(self, cls: C) -> C:
        """Class decorator: adds `cls` under the default of its `kind` field. Raises NameTaken."""
        plain: type[Kind] = cls
        kind = plain.model_fields["kind"].default
        if not isinstance(kind, str):
            raise TypeError(f'{cls.__name__} needs a line such as: kind: Literal["{cls.__name__.lower()}"] = ...')
        allowed = get_args(plain.model_fields["kind"].annotation)
        if allowed and kind not in allowed:
            raise TypeError(f"{cls.__name__} has two names: kind is Literal[{allowed[0]!r}] and by default {kind!r}")
        known = self._kinds.get(kind)
        if kind in self._presets:
            raise self._explain_taken(kind, f"a preset of {self._preset_modules[kind]}")
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise self._explain_taken(kind, f"{known.__module__}.{known.__qualname__}")
        self._kinds[kind] = cls  # type: ignore[assignment]
        return cls

    def preset(self, name: str, kind: str, /, note: str = "", **fields: Any) -> None:
        """Registers a name for a set of `fields` of one kind, accepted wherever a kind is. `note`: for the docs. Raises
        NameTaken."""
        module = sys._getframe(1).f_globals.get("__name__", "")
        if name in self._kinds:
            raise self._explain_taken(name, f"{self._kinds[name].__module__}.{self._kinds[name].__qualname__}")
        if self._preset_modules.get(name, module) != module and name in self._presets:
            raise self._explain_taken(name, f"a preset of {self._preset_modules[name]}")
        self._presets[name], self._preset_modules[name] = {"kind": kind, **fields}, module
        self.notes[name] = note

    def _explain_taken(self, name: str, owner: str) -> NameTaken:
        return NameTaken(f"the {self.name} {name!r} already exists ({owner}). Choose another name, such as my_{name}")

    def forget(self, module: str) -> None:
        """Removes the kinds of the classes in `module` and their presets, because it is reloaded or has failed."""
        self._kinds = {kind: cls for kind, cls in self._kinds.items() if cls.__module__ != module}
        self._presets = {
            name: fields for name, fields in self._presets.items()
            if fields["kind"] in self._kinds and self._preset_modules[name] != module
        }  # fmt: skip

    def find_module(self, name: str) -> str:
        """Return the name of the module that a kind or a preset comes from."""
        return self._kinds[name].__module__ if name in self._kinds else self._preset_modules[name]

    def __iter__(self) -> Iterator[str]:
        return (kind for kind, cls in self._kinds.items() if cls.listed)

    def __getitem__(self, kind: str) -> type[T]:
        return self._kinds[kind]

    def __contains__(self, kind: object) -> bool:
        return kind in self._kinds

    @property
    def slug(self) -> str:
        """The name as an identifier."""
        return self.name.replace(" ", "_")

    @property
    def presets(self) -> Mapping[str, Mapping[str, Any]]:
        """The presets by name."""
        return self._presets

    @property
    def names(self) -> list[str]:
        """The listed plain strings: the kinds, then the presets."""
        return [*self, *self._presets]

    @property
    def accepted(self) -> list[str]:
        """The names, and the kinds that are not listed."""
        return [*self.names, *(kind for kind, cls in self._kinds.items() if not cls.listed)]

    def expand(self, value: str) -> dict[str, Any]:
        """Return the mapping that a plain string stands for. An unknown name is kept as the kind, for validation to
        report."""
        known: Mapping[str, Any] | None = self._presets.get(value)
        if known is None and self.look_up and value not in self._kinds:
            known = self.look_up(value)
        return dict(deepcopy(known or {"kind": value}))

    def kind_of(self, value: Any) -> type[T] | None:
        """Return the class that a not yet validated `value` selects, or None if its kind is unknown."""
        if isinstance(value, Kind):
            return self._kinds.get(value.kind)
        if isinstance(value, str):
            value = self.expand(value)
        kind = value.get("kind", self.default) if isinstance(value, Mapping) else self.default
        return self._kinds.get(kind) if isinstance(kind, str) else None

    def list_kept(self, before: type[T] | None, after: type[T] | None) -> set[str]:
        """The fields that stay when the kind changes: those of the nearest class that both inherit."""
        if not self.keeps:
            return set()
        shared = next((cls for cls in before.__mro__ if after and issubclass(after, cls)), None) if before else None
        kept: type[Kind] = shared if shared and issubclass(shared, self.base) else self.base
        return set(kept.model_fields)

    def parse(self, value: Any) -> T:
        """Return `value` as an instance of the class of its kind; pydantic reports errors with their paths."""
        if isinstance(value, self.base):
            return value
        if isinstance(value, str):
            value = self.expand(value)
        if not isinstance(value, Mapping):
            raise PydanticCustomError("kind_type", "expected the name of a {name} or a mapping", {"name": self.name})
        kind = value.get("kind", self.default)
        if kind is None or not isinstance(kind, str) or kind not in self._kinds:
            raise PydanticCustomError(
                "unknown_kind",
                "unknown {name} {kind}. Accepted: {names}.{hint}",
                {
                    "name": self.name,
                    "kind": "null" if kind is None else repr(kind),
                    "names": ", ".join(self.names),
                    "hint": did_you_mean(str(kind), self.names),
                },
            )
        return self._kinds[kind].model_validate({**value, "kind": kind})

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.parse,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.model_dump(mode="json")),
        )

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: Any) -> JsonSchemaValue:
        return {
            "registry": self.slug
        }  # pydantic knows no such reference; `ablate.config.building.json_schema` makes it one

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema: one of the kinds, or the name of a kind or preset."""
        kinds = [cls.model_json_schema() for cls in self._kinds.values()]
        names = {"type": "string", **({} if self.look_up else {"enum": self.accepted})}
        return {"anyOf": [names, *kinds]}


class Catalogue(dict[str, Item]):
    """Named objects that are not part of a configuration, such as measurements and figures: name -> object.

    Args:
        noun: what one of them is called in messages.
    """

    all: ClassVar[list[Catalogue[Any]]] = []

    def __init__(self, noun: str) -> None:
        super().__init__()
        self.noun, self._modules = noun, dict[str, str]()
        Catalogue.all.append(self)

    def register(self, item: Added) -> Added:
        """Add `item`; also a class decorator. Raises NameTaken."""
        name, module = item.name, sys._getframe(1).f_globals.get("__name__", "")  # type: ignore[attr-defined]
        if self._modules.get(name, module) != module:
            raise NameTaken(f"the {self.noun} {name!r} already exists ({self._modules[name]}). Choose another name.")
        self[name], self._modules[name] = item, module  # type: ignore[assignment]
        return item

    def forget(self, module: str) -> None:
        """Remove what `module` has registered, because it is reloaded or has failed."""
        for name in [name for name, owner in self._modules.items() if owner == module]:
            del self[name], self._modules[name]

    def find_module(self, name: str) -> str:
        """Return the name of the module that has registered `name`."""
        return self._modules[name]
