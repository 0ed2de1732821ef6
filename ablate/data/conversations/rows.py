"""Rows with all their columns from JSON, JSON lines, parquet and arrow files or a dataset, and the prompts and
answers in them, formatted by a template."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ablate.config.base import Config
from ablate.config.errors import DataError
from ablate.config.formatting import join_first
from ablate.data.base import Origin
from ablate.data.files import explain, find_files, fingerprint_files
from ablate.data.readers import (
    explain_missing_column,
    get_text,
    name_json_type,
    open_table,
    open_text,
    read_json_lines,
    read_table,
)
from ablate.data.text.sources import DatasetSource, open_dataset
from ablate.tracking.remote_files import fetch_all

Row = tuple[str, dict[str, Any]]
"""(Location of a row, for messages; its values by column)."""


class RowSource:
    """The rows of files, or of a split of a dataset, in their order."""

    def __init__(self, name: str, fingerprint: str, rows: Callable[[], Iterator[Row]]) -> None:
        self.name, self.fingerprint, self._rows = name, fingerprint, rows

    def __iter__(self) -> Iterator[Row]:
        return self._rows()


def open_rows(origin: Origin, cache: Path) -> RowSource:
    """Return the rows of files, or of a split of a dataset. Raises DataError if they are missing."""
    if origin.dataset is not None:
        source: DatasetSource = open_dataset(origin.dataset, origin.subset, origin.split, origin.revision, "", cache)
        return RowSource(source.name, source.fingerprint, source.read_rows)
    paths = find_files(fetch_all(origin.files, cache), lambda path: path.suffix.lower() in READERS, ACCEPTED)
    return RowSource(
        join_first(paths, 3),
        fingerprint_files(paths, cache),
        lambda: (row for path in paths for row in _read_file(path)),
    )


def _read_file(path: Path) -> Iterator[Row]:
    try:
        yield from READERS[path.suffix.lower()](path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {explain(error)}") from error


def _read_json(path: Path) -> Iterator[Row]:
    try:
        with open_text(path) as file:
            rows = json.loads(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8, which is expected: byte {error.start}") from None
    except json.JSONDecodeError as error:
        hint = " JSON lines have the suffix .jsonl." if error.msg == "Extra data" else ""
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}.{hint}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON that can be read: {explain(error)}") from None
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of objects, got {name_json_type(rows)}")
    for number, row in enumerate(rows, 1):
        where = f"{path}: entry {number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: expected an object, got {name_json_type(row)}")
        yield where, row


def _read_table(path: Path) -> Iterator[Row]:
    with open_table(path) as (_, batches):
        yield from read_table(path, batches)


_read_json_lines = partial(read_json_lines, example='{"instruction": ..., "output": ...}')
READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json-lines": _read_json_lines,
    ".parquet": _read_table,
    ".arrow": _read_table,
}
"""The reader of a file, by its suffix."""

ACCEPTED = ", ".join(READERS)
"""The suffixes that are accepted, for messages."""


class Turn(NamedTuple):
    """A part of an example; parts are concatenated without a separator."""

    text: str
    answer: bool
    """Whether this part is an answer, which is trained on and followed by the end of text; otherwise it is a prompt."""


@dataclass(frozen=True)
class Template:
    """The text around the contents of a row."""

    preface: str
    preface_with_input: str
    instruction: str
    input: str
    response: str
    """The text before an answer."""

    def format_question(self, instruction: str, about: str = "", first: bool = True) -> str:
        """Return the text up to an answer; `first`: at the start of an example."""
        begin = (self.preface_with_input if about else self.preface) if first else ""
        more = self.input.format(about) if about else ""
        return f"{begin}{self.instruction.format(instruction)}{more}{self.response}"


_TASK = "Below is an instruction that describes a task"
_REQUEST = "Write a response that appropriately completes the request.\n\n"
TEMPLATES = {
    "alpaca": Template(  # of Stanford Alpaca, which the recipes on Commonsense170K take over
        preface=f"{_TASK}. {_REQUEST}",
        preface_with_input=f"{_TASK}, paired with an input that provides further context. {_REQUEST}",
        instruction="### Instruction:\n{}\n\n",
        input="### Input:\n{}\n\n",
        response="### Response:\n",
    ),
    "plain": Template("", "", "{}\n", "{}\n", ""),
}


class Columns(Config):
    """The names of the data's columns."""

    instruction: str = "instruction"
    """Column of the instruction."""
    input: str = "input"
    """Column of the instruction's input. Rows may omit it or leave it empty."""
    output: str = "output"
    """Column of the answer."""
    messages: str | None = None
    """Column of a chat, a list of {role, content} or {from, value}. None: `messages` or `conversations`, if either
    exists."""


_FORMAT = (
    " Instructions are in instruction, input and output, or as a chat in messages; set other column names in "
    "data.columns."
)
_CHATS = ("messages", "conversations")
_FORMS = (("role", "content"), ("from", "value"))
_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}


def read_turns(where: str, row: dict[str, Any], columns: Columns, template: Template) -> list[Turn]:
    """Return the parts of an example from a row with a chat, or with an instruction and its answer. Raises DataError
    with the location and the missing part."""
    chat = columns.messages or next((name for name in _CHATS if name in row), None)
    if chat is not None:
        if chat not in row:
            raise explain_missing_column(where, chat, row.keys(), _FORMAT)
        return read_chat(f"{where}, {chat!r}", row[chat], template)
    instruction, output = (get_text(where, row, name, _FORMAT) for name in (columns.instruction, columns.output))
    context = "" if row.get(columns.input) is None else get_text(where, row, columns.input)
    return [Turn(template.format_question(instruction, context), False), Turn(output, True)]


def read_chat(where: str, messages: Any, template: Template) -> list[Turn]:
    """Return the parts of a chat; messages after the last answer are left out. Raises DataError for a chat without an
    answer, and for a value that is not a chat."""
    turns: list[Turn] = []
    question = ""
    for number, (role, text) in enumerate(read_messages(where, messages), 1):
        if role == "assistant":
            if not question:
                raise DataError(f"{where}: message {number} is an answer without a prompt")
            turns += [Turn(question, False), Turn(text, True)]
            question = ""
        elif role == "system":
            question += f"{text}\n\n"
        else:
            question += template.format_question(text, first=not turns and not question)
    if not turns:
        raise DataError(f"{where}: no message has the role assistant")
    return turns


def read_messages(where: str, messages: Any) -> list[tuple[str, str]]:
    """Return (role, text) of each message of a chat: system, user or assistant. Raises DataError."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise DataError(f"{where}: expected a list of messages, got {name_json_type(messages)}")
    pairs = []
    for number, message in enumerate(messages, 1):
        at = f"{where}: message {number}"
        keys = next((keys for keys in _FORMS if isinstance(message, dict) and {*keys} <= {*message}), None)
        if keys is None:
            raise DataError(f'{at}: expected {{"role": ..., "content": ...}} or {{"from": ..., "value": ...}}')
        role = message[keys[0]]
        if role not in _ROLES:
            raise DataError(f"{at}: unknown role {role!r}. Accepted: {', '.join(_ROLES)}.")
        pairs.append((_ROLES[role], get_text(at, message, keys[1])))
    return pairs
