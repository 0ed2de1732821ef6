"""Building an instance of a configuration class from mappings, with its plugins loaded first; pydantic's errors as
plain messages, with the nearest accepted key; the JSON schema of a file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from ablate.config import plugins
from ablate.config.base import Config
from ablate.config.errors import MOST_LETTERS, ConfigError, Problem, did_you_mean
from ablate.config.foreign import translate
from ablate.config.formatting import join_words
from ablate.config.merging import Tree, find_part, find_registry, iterate_paths, merge
from ablate.config.registry import Registry


def build(cls: type[Any], *mappings: Mapping[str, Any], source: str) -> Any:
    """Return an instance of the configuration class `cls` from `mappings`, later ones over earlier."""
    load_plugins(*mappings, source=source)
    tree: Tree = {}
    for mapping in mappings:
        tree = merge(cls, tree, mapping)
    try:
        return cls.model_validate(tree)
    except ValidationError as error:
        problems = describe_errors(cls, tree, error)
        raise ConfigError([*problems, *_find_conflicts(cls, tree, problems)], source) from None


def gather_problems(problems: Iterable[Problem], title: str) -> ValidationError:
    """Return `problems` of an instance of the class `title` as an error of pydantic, which a validator raises."""
    details: list[InitErrorDetails] = [
        {
            "type": PydanticCustomError("conflict", "{text}", {"text": problem.message}),
            "loc": tuple(problem.path.split(".")) if problem.path else (),
            "input": problem.given,
        }
        for problem in problems
    ]
    return ValidationError.from_exception_data(title, details)


def _find_conflicts(cls: type[Any], tree: Tree, problems: Sequence[Problem]) -> list[Problem]:
    """Return the conflicts between fields in `tree` that the `problems` of single fields hide. The check runs without
    these fields. A conflict that names one of them is omitted, since the field's default may cause it.
    """
    paths = [re.sub(r"(\.kind|\.\d+)$", "", problem.path).split(".") for problem in problems]
    try:
        cls.model_validate(_leave_out(tree, paths))
    except ValidationError as error:
        names = re.compile("|".join(rf"\b{re.escape(path[-1])}\b" for path in paths))
        return [
            problem
            for problem in describe_errors(cls, tree, error)
            if not names.search(f"{problem.path} {problem.message}")
        ]
    return []


def _leave_out(tree: Mapping[str, Any], paths: Iterable[Sequence[str]]) -> Tree:
    """Return `tree` without the values at `paths`."""
    below: dict[str, list[Sequence[str]]] = {}
    for key, *rest in paths:
        below.setdefault(key, []).append(rest)
    return {
        key: _leave_out(value, below[key]) if key in below else value
        for key, value in tree.items()
        if key not in below or (isinstance(value, Mapping) and all(below[key]))
    }


def load_plugins(*mappings: Mapping[str, Any], source: str = "the configuration") -> None:
    """Load the `plugins` of all `mappings`, before one of their kinds is looked up. Raises ConfigError."""
    plugins.load(plugins.merge_plugins(*(mapping.get("plugins") for mapping in mappings)), source=source)


def describe_errors(cls: type[Any], tree: Tree, error: ValidationError) -> list[Problem]:
    """Return the problems that validating `tree` as a `cls` found."""
    joined = _join_unions(error.errors())
    return [_build_problem(cls, tree, details, number < _MOST_HINTS) for number, details in enumerate(joined)]


_MOST_HINTS = 50
"""Unknown keys of a file for which a suggestion is looked up, which takes milliseconds each."""


_WORDS = {
    "missing": "is required",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "string_type": "must be text, in quotes if it would be read as a number, true or false",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list, such as [a, b]"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "must be a mapping, such as {{key: value}}"),
    "invalid_key": "a key must be text, in quotes if it would be read as a number, true or false",
    "tuple_length": "must be a list of {length} values",
    "union": "must be {accepted}",
}
"""Pydantic's type of error -> the message, if pydantic's own text is not plain enough."""


_SINGLE = {f"{name}_{what}" for name in ("int", "float", "bool") for what in ("type", "parsing")} | {"literal_error"}
"""Pydantic's types of error for a field that expects a single value."""


_NAME = "must consist of letters from A to Z, digits, dots, hyphens and underscores, beginning with a letter or digit"


_PATTERNS = {"^[A-Za-z0-9][A-Za-z0-9._-]*$": _NAME, "://": "must be an address, such as s3://bucket/runs"}


_MEMBER = re.compile(
    r"bool|(constrained-)?(int|float|str)|(literal|list|tuple|dict)\[.*\]"
)  # what pydantic adds to a union's path


def _join_unions(errors: Iterable[Any]) -> list[Any]:
    """Return `errors` as the user sees them: one for a union of which no member fits, one for a list that is too
    short."""
    by_key: dict[Any, Any] = {}
    for number, details in enumerate(errors):
        *above, last = details["loc"] or ("",)
        key: Any = number
        if details["type"] == "missing" and isinstance(last, int):
            key = tuple(above)  # the last one missing tells the length
            details = {**details, "type": "tuple_length", "loc": key, "ctx": {"length": last + 1}}
        elif above and _MEMBER.fullmatch(str(last)):
            key = tuple(above)
            before = f"{by_key[key]['ctx']['accepted']} or " if key in by_key else ""
            accepted = before + _describe(details).removeprefix("must be ")
            accepted = accepted.replace("a whole number or a number", "a number")
            details = {**details, "type": "union", "loc": key, "ctx": {"accepted": accepted}}
        elif last == "[key]":
            details = {**details, "type": "invalid_key", "loc": above[:-1]}
        by_key[key] = details
    return list(by_key.values())


def _describe(details: Any) -> str:
    """Return a plain message for a pydantic error."""
    context = details.get("ctx", {})
    if details["type"] in _WORDS:
        return _PATTERNS.get(context.get("pattern"), _WORDS[details["type"]].format(**context))
    message = details["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return re.sub("^(Input|Value|String|List|Tuple|Dictionary) should ", "must ", message)


def _build_problem(cls: type[Any], tree: Tree, details: Any, with_hint: bool) -> Problem:
    """Return a pydantic error as a problem: unknown keys get a suggestion, values say what is accepted."""
    path = ".".join(str(part) for part in details["loc"])
    kind, value, message = details["type"], details["input"], _describe(details)
    if kind == "extra_forbidden":
        return Problem(path, f"unknown key.{_suggest_key(cls, tree, path, value) if with_hint else ''}", value)
    if kind == "unknown_kind":
        if hint := _suggest_arms(cls, tree, path, value) or _suggest_kind(cls, tree, path, value):
            message = f"{message.partition(' Did you mean')[0]}{hint}"
        return Problem(f"{path}.kind" if isinstance(value, Mapping) else path, message)
    if kind in _SINGLE and len(values := _split_values(value)) > 1 and sum(map(len, values)) <= MOST_LETTERS:
        several = (
            f" To compare several values, write a sweep: search: {{{path}: [{', '.join(values)}]}} in a file for "
            "ablate sweep"
        )
        message += f".{translate(path, ','.join(values)) or several}"
    elif kind in _SINGLE and (hint := translate(f"{path}={value}")):
        message += f".{hint}"
    if value is None and kind in _WORDS:
        message += ", not null"
    if isinstance(value, (Mapping, Config)):
        value = None
    return Problem(path, message, list(value) if isinstance(value, tuple) else value)


def _split_values(value: Any) -> list[str]:
    """Return the values in the comma-separated text or list `value`."""
    values = value if isinstance(value, (list, tuple)) else value.split(",") if isinstance(value, str) else []
    return [str(part).strip() for part in values]


def _suggest_arms(cls: type[Any], tree: Tree, path: str, value: Any) -> str:
    """Return how to compare several kinds, if `value` is a comma-separated list of kinds."""
    registry = find_registry(cls, tree, path.split("."))
    kinds = dict.fromkeys(_split_values(value.get("kind") if isinstance(value, Mapping) else value))
    if registry is None or len(kinds) < 2 or not {*kinds} <= {*registry.names}:
        return ""
    arms = ", ".join(f"{kind}: {{{path}: {kind}}}" for kind in kinds)
    return f" To compare several kinds, write a sweep: arms: {{{arms}}} in a file for ablate sweep."


def _suggest_kind(cls: type[Any], tree: Tree, path: str, value: Any) -> str:
    """Return a suggestion for a kind of another part, such as a norm layer given as the placement, and for a foreign
    word."""
    registry = find_registry(cls, tree, path.split("."))
    name = str(value.get("kind") if isinstance(value, Mapping) else value).lower()
    for field in registry.base.model_fields if registry else ():
        part, _ = find_part(registry and registry.base, {}, field)
        if part and name in part.names:
            return f" Did you mean {path}.{field}={name}?"
    return translate(path, name)


def _suggest_key(cls: type[Any], tree: Tree, path: str, value: Any) -> str:
    """Return a suggestion for a misspelt or misplaced key: from the same part first, then the same name in other parts;
    for a key without a part, the same name first."""
    known = list(iterate_paths(cls, tree))
    open_parts = {part: find_part(cls, tree, part)[0] for part in cls.model_fields if part not in tree}
    choices = [(part, registry[kind]) for part, registry in open_parts.items() if registry for kind in registry]
    possible = {*known, *(f"{part}.{field}" for part, kind in choices for field in kind.model_fields)}
    if foreign := translate(path, value, known=possible):
        return foreign
    parent, _, name = path.rpartition(".")
    beside = {p.rpartition(".")[2]: p for p in known if p.rpartition(".")[0] == parent}
    if not beside and parent and (registry := find_registry(cls, tree, parent.split("."))):  # its kind is not chosen
        beside = {field: f"{parent}.{field}" for kind in registry for field in registry[kind].model_fields}
    others = [p for p in known if not path.startswith(f"{p}.")]
    elsewhere = [p for p in others if p.rpartition(".")[2] == name]
    elsewhere += [f"{p}.{name} (of {p}.kind {kinds[0]})" for p in known if (kinds := _find_kinds(cls, tree, p, name))]
    longer = [near for near in beside if name and near != name and near.startswith(name)]
    if owners := _find_kinds(cls, tree, parent, name):
        hint = f" Did you mean {beside[longer[0]]}?" if longer else ""
        return f" It belongs to {parent}.kind {join_words(owners, 'or')}.{hint}"
    if not parent and elsewhere:  # lr is optimizer.lr, and not lora
        return f" Did you mean {elsewhere[0]}?"
    if close := difflib.get_close_matches(name, beside, n=1) or longer:
        return f" Did you mean {beside[close[0]]}?"
    if elsewhere:
        return f" Did you mean {elsewhere[0]}?"
    return did_you_mean(path, others) or (f" Accepted: {', '.join(beside.values())}." if beside else "")


def _find_kinds(cls: type[Any], tree: Tree, parent: str, name: str) -> list[str]:
    registry = find_registry(cls, tree, parent.split(".")) if parent else None
    return [kind for kind in registry if name in registry[kind].model_fields] if registry else []


def json_schema(cls: type[Config]) -> dict[str, Any]:
    """Return the JSON schema of a configuration file, for editors."""
    plugins.load()
    schema = cls.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    for registry in Registry.all.values():
        definitions[registry.slug] = part = registry.json_schema()
        for kind in part["anyOf"]:  # a kind's own definitions are looked up at the top
            definitions.update(kind.pop("$defs", {}))
    return _refer(schema)


def _refer(schema: Any) -> Any:
    """Return `schema` with references instead of registries, and of fields that a part has from the whole file."""
    if isinstance(schema, dict):
        for mark, place in (("registry", "$defs"), ("of_file", "properties")):
            if isinstance(name := schema.get(mark), str):
                rest = {key: _refer(value) for key, value in schema.items() if key != mark}
                return {**rest, "$ref": f"#/{place}/{name}"}
        return {key: _refer(value) for key, value in schema.items()}
    return [_refer(item) for item in schema] if isinstance(schema, list) else schema
