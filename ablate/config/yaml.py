"""YAML as people write it, configuration files and `key=value` words of the command line; and JSON that somebody
else has written."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from ablate.config.errors import ConfigError, Problem, did_you_mean
from ablate.config.foreign import translate

SUFFIXES = (".yaml", ".yml")


MOST_VALUES = 100_000
"""The largest number of values that aliases may expand to. The largest sweep files have a few hundred; 250 bytes of
nested aliases can expand to more than the memory holds."""

_TAG = "tag:yaml.org,2002:"
_READ_AS = {"int": "a number", "float": "a number", "bool": "true or false", "null": "null"}


class _Loader(yaml.SafeLoader):
    """safe_load that, as YAML 1.2 does and PyYAML does not, reads 1e-3 as a number and 2024-01-31 as text, and rejects
    a number that the two versions of YAML read differently, a key that appears twice or is not text, an anchor that
    contains itself, and aliases that expand to too many values. Within braces a comma in parentheses does not end a
    value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.faults: dict[tuple[int, int], yaml.MarkedYAMLError] = {}
        """Position -> the error of a key that is not text or a number that is not clear, to be reported at once."""
        self._values = 0
        self._values_by_anchor: dict[str, int] = {}
        self._open_anchors: set[str] = set()

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node, and count the values that it holds once its aliases are followed. Raises MarkedYAMLError."""
        event, before = self.peek_event(), self._values
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self._open_anchors:
                raise _build_fault(f"the anchor {event.anchor!r} contains itself", event)
            self._values += self._values_by_anchor.get(event.anchor, 0)
            if self._values > MOST_VALUES:
                text = f"with the alias {event.anchor!r} the aliases expand to more than {MOST_VALUES:,} values"
                raise _build_fault(f"{text}; write the values out", event)
            return super().compose_node(parent, index)
        anchor = getattr(event, "anchor", None)
        self._open_anchors.update([anchor] if anchor else [])
        node = super().compose_node(parent, index)
        self._values += 1
        if anchor:
            self._open_anchors.discard(anchor)
            self._values_by_anchor[anchor] = self._values - before
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct a value. Raises MarkedYAMLError if its text does not fit its tag, for which PyYAML raises arbitrary
        errors."""
        try:
            if _is_plain(node) and (readings := _read_both_ways(node.value)):
                text = f"{node.value!r} is {readings[0]} in YAML 1.1 and {readings[1]} in YAML 1.2. Write the number"
                self._add_fault(f"{text} in plain digits or, if it is text, in quotes: '{node.value}'", node)
                return None
            return super().construct_object(node, deep)
        except (ValueError, LookupError, TypeError, AttributeError):
            if not isinstance(node, yaml.ScalarNode):
                raise
            text = f"{node.value!r} cannot be read as {node.tag.removeprefix(_TAG)}"
            raise _build_fault(text, node) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        _join_calls(node)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                kind = "a list" if isinstance(key, yaml.SequenceNode) else "a mapping"
                raise _build_fault(f"a key must be text, found {kind}", key)
            if key.value in seen:
                raise _build_fault(f"the key {key.value!r} appears twice", key)
            seen.add(key.value)
            if key.tag not in (f"{_TAG}str", f"{_TAG}merge", f"{_TAG}value"):
                kind = _READ_AS.get(key.tag.removeprefix(_TAG), "something else")
                text = f"a key must be text, in quotes: {key.value!r} is read as {kind}"
                self._add_fault(text, key)
        return super().construct_mapping(node, deep)

    def _add_fault(self, text: str, node: Any) -> None:
        """Add an error at the start of a node, unless it has one."""
        self.faults.setdefault((node.start_mark.line, node.start_mark.column), _build_fault(text, node))


def _join_calls(node: yaml.MappingNode) -> None:
    """Join a value such as mean(a, b) within braces, where YAML ends it at the comma: it reads {metric: mean(a, b)} as
    {metric: "mean(a", "b)": null}."""
    if not node.flow_style:
        return
    pairs: list[tuple[Any, Any]] = []
    for key, value in node.value:
        before: Any = pairs[-1][1] if pairs else None
        is_open = _is_plain(before) and before.value.count("(") > before.value.count(")")
        if is_open and _is_plain(key) and value.tag == f"{_TAG}null" and not value.value:
            before.value += f", {key.value}"
        else:
            pairs.append((key, value))
    node.value = pairs


def _is_plain(node: Any) -> bool:
    """Return whether a node is text without quotes."""
    return isinstance(node, yaml.ScalarNode) and node.style is None


_SEXAGESIMAL = r"[-+]?([1-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*)"
_UNCLEAR = re.compile(rf"[-+]?0[0-9_]*[0-9]|[-+]?0o[0-7]+|{_SEXAGESIMAL}")


def _read_both_ways(text: str) -> tuple[Any, Any] | None:
    """Return the values of `text` in YAML 1.1 and in YAML 1.2, which differ for octal and sexagesimal numbers; None if
    they are equal."""
    if not _UNCLEAR.fullmatch(text):
        return None
    digits = text.replace("_", "")
    second: Any = "text" if ":" in text else int(digits.replace("0o", ""), 8 if "0o" in text else 10)
    first = yaml.safe_load(text)
    first = "text" if isinstance(first, str) else first
    return None if first == second else (first, second)


def _build_fault(text: str, where: Any) -> yaml.MarkedYAMLError:
    """Return the error at the start of an event or a node."""
    return yaml.MarkedYAMLError(problem=text, problem_mark=where.start_mark)


class _Dumper(yaml.SafeDumper):
    """safe_dump that puts text into quotes which `_Loader` would not read as text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] not in ("float", "timestamp", "value")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_FLOAT = r"^[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(f"{_TAG}float", re.compile(_FLOAT), list("-+0123456789."))
_Dumper.add_implicit_resolver("!unclear", re.compile(rf"^({_UNCLEAR.pattern})$"), list("-+0123456789"))


def dump_yaml(tree: Any) -> str:
    """Return `tree` as YAML text, from which `parse_yaml` makes the same again."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False)


def parse_yaml(text: str, source: str) -> Any:
    """Return the value of YAML `text`. Raises ConfigError that names `source`, the line and the column."""
    value, faults = _load(text)
    if faults:
        raise ConfigError([Problem(f"{source}{place}", message) for place, message in faults], source)
    return value


def _load(text: str) -> tuple[Any, list[tuple[str, str]]]:
    """Return (the value of YAML `text`, its errors: position and message of each)."""
    try:
        loader = _Loader(text)
        value = loader.get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, [_explain_fault(text, error)]
    return value, [_explain_fault(text, fault) for _, fault in sorted(loader.faults.items())]


_EXPLAINED = {
    r"character '\t'": "a tab is not allowed here: use blanks",
    "<block end>": "the indentation does not fit that of the lines above",
    "while scanning an alias": "a value that begins with * is an alias in YAML. A name with * needs quotation marks",
    "mapping values are not allowed": "key: value is not allowed here. Check the indentation of this line and the one "
    "above; text that has a colon and a space needs quotation marks",
}
"""Part of a message of PyYAML -> what to do."""


def _explain_fault(text: str, error: Exception) -> tuple[str, str]:
    """Return (":line:column" if it is known, the error there)."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        context = f" ({error.context})" if error.context else ""
        message = f"{error.problem or 'not YAML'}{context}".replace("'<stream end>'", "the end")
        message = next((text for part, text in _EXPLAINED.items() if part in message), message)
        return f":{mark.line + 1}:{mark.column + 1}", message
    if isinstance(error, yaml.reader.ReaderError):
        before = text[: error.position]
        place = f":{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"
        return place, f"the character {chr(error.character)!r} is not allowed in YAML"
    if isinstance(error, RecursionError):
        return "", "nested too deeply"
    return "", f"cannot be read: {error}"


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. Raises ConfigError if it is missing, not YAML or not a mapping."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = did_you_mean(file.name, (f.name for f in file.parent.glob("*.yaml"))) if file.parent.is_dir() else ""
        raise ConfigError([Problem("", f"there is no file {file}.{near}")], str(file)) from None
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError([Problem(f"{file}:{line}", "is not UTF-8; convert it first")], str(file)) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        text = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError([Problem("", text)], str(file)) from None
    tree = parse_yaml(text, str(file))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError([Problem("", f"expected key: value lines, found {type(tree).__name__}")], str(file))
    return tree


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Return `key=value` words as {dotted path: value}; a value is YAML. Raises ConfigError with all invalid words."""
    overrides: dict[str, Any] = {}
    problems = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            hint = "; a file must come first" if word.endswith(SUFFIXES) else _translate_bare(word)
            if overrides and not hint and os.path.splitext(word)[1]:  # the name of a second file
                last = next(reversed(overrides))
                hint = f"; several values of {last} are a list: {last}=[FIRST,SECOND]"
            problems.append(Problem("", f"expected key=value, given {word!r}{hint}"))
            continue
        overrides[key.strip()], faults = _load(value)
        quoted = f": {shlex.quote(f'{key}={json.dumps(value)}')}" if value.startswith("*") else ""
        problems += [Problem(key, f"not a YAML value: {message}{quoted}", value) for _, message in faults]
    if problems:
        raise ConfigError(problems, "the command line")
    return overrides


def _translate_bare(word: str) -> str:
    """Return '. Did you mean X? ...' for a foreign word without a value; '' if the table does not have it."""
    hint = translate(word, "VALUE")
    return f".{hint}" if hint else ""


def check_suffix(file: Path) -> None:
    """Raise ConfigError for a file of settings in another format than YAML, such as TOML."""
    if hint := translate(file.suffix, file.stem):
        raise ConfigError([Problem("", f"{file} is not read.{hint}")], "the command line")


def split_words(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Split `[FILE.yaml] key=value ...`. Raises ConfigError for a first word that is neither."""
    if not words or "=" in words[0]:
        return None, parse_overrides(words)
    file = Path(words[0])
    check_suffix(file)
    if file.suffix not in SUFFIXES and not os.path.exists(file):
        text = f"expected FILE.yaml or key=value, given {words[0]!r}{_translate_bare(words[0])}"
        raise ConfigError([Problem("", text)], "the command line")
    return words[0], parse_overrides(words[1:])


MOST_LEVELS = 100
"""The deepest nesting: code that walks through values recurses once for each level, and Python allows about 1,000
calls."""


def parse_json(text: str) -> Any:
    """Return the value of JSON. Raises ValueError for text that is not JSON, for more than 100 levels, and for numbers
    that are not finite, which JSON does not have and Python accepts."""
    deep = ValueError(f"it is nested more than {MOST_LEVELS} levels deep")
    try:
        value = json.loads(text)
    except RecursionError:
        raise deep from None
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise ValueError("it has a number that is not finite")
        inside = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        if not inside:
            return value
        level = list(itertools.chain.from_iterable(inside))
    raise deep
