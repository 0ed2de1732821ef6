"""Code that the parsers of the verbs share: the parser itself, options, types of arguments, and errors in arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from ablate import tracking
from ablate.config.errors import ConfigError, Problem
from ablate.config.lazy import postpone_imports
from ablate.config.yaml import parse_overrides

with postpone_imports():
    from ablate.config import plugins

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The object that a verb adds its parser to."""
COMMAND_LINE = "the command line"
"""The source that a ConfigError names for a mistake in the arguments."""
OVERRIDES = "key=value: a dotted path of the configuration and a YAML value, such as optimizer.lr=1e-3"
PLUGINS = "Python files that register your own kinds, such as plugins=my_norm.py"


def add_verb(
    verbs: Verbs, name: str, text: str, example: str, call: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """Add the verb `name`, which `call` runs, and return its parser."""
    parser = verbs.add_parser(
        name,
        help=text,
        description=text,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(call=call)
    return parser


def add_plugins(parser: argparse.ArgumentParser) -> None:
    """Let the verb accept `plugins=FILE.py` words, after or between its models (see `take_plugins`)."""
    parser.set_defaults(words=[])
    text = "plugins=FILE.py, in any position, loads a plugin that a model from another store needs: its code is run"
    parser.epilog = f"{parser.epilog}\n\n{text}"


def add_trust(parser: argparse.ArgumentParser, whose: str) -> None:
    """Add --trust-remote-code."""
    parser.add_argument("--trust-remote-code", action="store_true", help=f"run code that comes with {whose}")


def add_storage(parser: argparse.ArgumentParser) -> None:
    """Add --storage."""
    remember = tracking.remember_address  # so that no message shows its password
    parser.add_argument(
        "--storage",
        type=remember,
        metavar="URL",
        help="studies: sqlite:///FILE, journal:///FILE or postgresql://HOST/NAME (default: SQLite under mlruns/)",
    )


def add_json(parser: argparse.ArgumentParser, text: str = "print as JSON") -> None:
    """Add --json: stdout is then one JSON document."""
    parser.add_argument("--json", action="store_true", help=text)


def parse_positive(text: str, also: str = "") -> int:
    """Return a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be {also}a whole number of at least 1, given {text}")
    return int(text)


def parse_port(text: str) -> int:
    """Return the number of a port."""
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 65535, given {text}")
    return int(text)


def parse_positive_or_auto(text: str) -> int | Literal["auto"]:
    """Return a whole number of at least 1, or auto."""
    return "auto" if text == "auto" else parse_positive(text, "auto or ")


def parse_whole(text: str) -> int:
    """Return a whole number of at least 0."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, given {text}")
    return int(text)


def parse_names(text: str) -> list[str]:
    """Return the names in a comma-separated text, one or more."""
    if names := [name.strip() for name in text.split(",") if name.strip()]:
        return names
    raise argparse.ArgumentTypeError(f"expected one name or more, with commas between them, given {text!r}")


def parse_sizes(text: str) -> list[int]:
    """Return the whole numbers of at least 1 in a comma-separated text."""
    return [parse_positive(size) for size in parse_names(text)]


def parse_above_zero(text: str) -> float:
    """Return a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, given {text}")
    return value


def parse_share(text: str) -> float:
    """Return a number above 0 and at most 1."""
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and at most 1, given {text}")
    return share


def parse_plugins(words: Sequence[str]) -> list[str]:
    """Return the files of `plugins=FILE.py` words, the only words that a verb without a configuration accepts."""
    overrides = parse_overrides(words)
    if unknown := [key for key in overrides if key != "plugins"]:
        problems = [Problem(key, "unknown key. Accepted: plugins", overrides[key]) for key in unknown]
        raise ConfigError(problems, COMMAND_LINE)
    return [str(file) for file in plugins.merge_plugins(overrides.get("plugins"))]


def take_plugins(words: Sequence[str], *lists: Sequence[str]) -> list[list[str]]:
    """Load the files of the `plugins=FILE.py` words in `lists` and in `words`, which may contain nothing else; return
    the lists without them. Raises ConfigError."""
    named = [[word for word in listed if word.startswith("plugins=")] for listed in lists]
    files = [file for own in (words, *named) for word in own for file in parse_plugins([word])]
    plugins.load(files, source=COMMAND_LINE)
    return [[word for word in listed if word not in own] for listed, own in zip(lists, named, strict=True)]


def build_error(path: str, text: str) -> ConfigError:
    """Return the error for one mistake in the arguments."""
    return ConfigError([Problem(path, text)], COMMAND_LINE)
