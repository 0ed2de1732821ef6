"""YAML as people write it: configuration files, and `key=value` words of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from ablate.config.errors import ConfigError, Problem, did_you_mean

SUFFIXES = (".yaml", ".yml")


class _Loader(yaml.SafeLoader):
    """safe_load that, as YAML 1.2 does and PyYAML does not, reads 1e-3 as a number and 2024-01-31 as text, and refuses
    a key that stands twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} stands twice", problem_mark=key.start_mark)
            seen.update([key.value] if isinstance(key, yaml.ScalarNode) else [])
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag.rpartition(":")[2] not in ("float", "timestamp")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, source: str) -> Any:
    """Return the value of YAML `text`. Raises ConfigError that names `source`, the line and the column."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        place, message = _fault(text, error)
        raise ConfigError([Problem(f"{source}{place}", message)], source) from None


def _fault(text: str, error: Exception) -> tuple[str, str]:
    """Return (":line:column" where it is known, what is wrong there)."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark):
        context = f" ({error.context})" if error.context else ""
        message = f"{error.problem or 'not YAML'}{context}".replace("'<stream end>'", "the end")
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
        line = text_before(file, error.start).count(b"\n") + 1
        raise ConfigError([Problem(f"{file}:{line}", "is not UTF-8; convert it first")], str(file)) from None
    except OSError as error:
        raise ConfigError([Problem("", f"cannot be read: {error.strerror or error}")], str(file)) from None
    tree = parse_yaml(text, str(file))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError([Problem("", f"expected key: value lines, found {type(tree).__name__}")], str(file))
    return tree


def text_before(file: Path, position: int) -> bytes:
    """Return the bytes of a file before `position`."""
    with file.open("rb") as opened:
        return opened.read(position)


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """Return `key=value` words as {dotted path: value}; a value is YAML. Raises ConfigError with all that are not."""
    overrides: dict[str, Any] = {}
    problems = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            order = "; a file comes first" if word.endswith(SUFFIXES) else ""
            problems.append(Problem("", f"expected key=value, given {word!r}{order}"))
            continue
        try:
            overrides[key.strip()] = yaml.load(value, _Loader)  # noqa: S506 - a SafeLoader
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            problems.append(Problem(key, f"not a YAML value: {_fault(value, error)[1]}", value))
    if problems:
        raise ConfigError(problems, "the command line")
    return overrides


def split_words(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """Split `[FILE.yaml] key=value ...`. Raises ConfigError for a first word that is neither."""
    if not words or "=" in words[0]:
        return None, parse_overrides(words)
    file = Path(words[0])
    if file.suffix not in SUFFIXES and not file.exists():
        text = f"expected FILE.yaml or key=value, given {words[0]!r}"
        raise ConfigError([Problem("", text)], "the command line")
    return words[0], parse_overrides(words[1:])
