"""reference/cli.md: every verb of the command line with its arguments, from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ablate.cli import build_parser
from ablate.config.markdown import build_table

_HEAD = """\
# Command line

Written from the parsers by `make docs`; `ablate VERB --help` prints the same. `ablate` and `python -m ablate` are the
same program. A word `key=value` is a dotted path of the [configuration](configuration.md) and a YAML value.

| exit status | meaning |
|---|---|
| 0 | done |
| 1 | done, but some trials failed |
| 2 | a mistake in the input, or an unreachable database or server |
| 130 | stopped by Ctrl-C |
"""


def build_page() -> str:
    """Return the whole page, Markdown."""
    verbs = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return "\n".join([_HEAD, *(_describe_verb(name, parser) for name, parser in verbs.choices.items())])


def _describe_verb(name: str, parser: argparse.ArgumentParser) -> str:
    description = (parser.description or "").strip()
    parts = [f"## {name}\n\n{description[:1].upper()}{description[1:]}.\n"]
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    arguments = [action for action in shown if not action.option_strings]
    options = [action for action in shown if action.option_strings and action.dest != "help"]
    parts += [_describe_actions(title, actions, parser) for title, actions in (
        ("argument", arguments), ("option", options)) if actions]  # fmt: skip
    if parser.epilog:
        parts.append(_describe_epilog(parser.epilog))
    return "\n".join(parts)


def _describe_actions(title: str, actions: Sequence[argparse.Action], parser: argparse.ArgumentParser) -> str:
    rows = [(f"`{_name(action)}`", _explain(action, parser)) for action in actions]
    return build_table((title, "meaning"), rows)


def _name(action: argparse.Action) -> str:
    metavar = action.metavar or ("" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}")
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    if not action.option_strings:
        return value or action.dest
    if action.nargs != 0 and not value:
        value = action.dest.upper()
    several = " ..." if action.nargs in ("+", "*") else ""
    return f"{', '.join(action.option_strings)} {value}{several}".strip()


def _explain(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return f"{text} (required)" if action.required and action.option_strings else text


def _describe_epilog(epilog: str) -> str:
    """Return the examples as a block of commands, and the text below them as a paragraph."""
    lines = epilog.splitlines()
    examples = [line.strip() for line in lines if line.startswith("  ")]
    remarks = " ".join(line.strip() for line in lines[1:] if line.strip() and not line.startswith("  "))
    block = "```bash\n" + "\n".join(examples) + "\n```\n"
    return f"{block}\n{remarks[:1].upper()}{remarks[1:]}.\n" if remarks else block
