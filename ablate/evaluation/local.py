"""The questions of a task in local files, found in a folder by the names of files and their columns."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.errors import DataError
from ablate.data.spans.questions import flatten_articles
from ablate.data.splits import SPLITS

if TYPE_CHECKING:
    from datasets import Dataset

_NOTES = ("dataset_info.json", "state.json")  # what `datasets` writes beside the questions


@dataclass(frozen=True)
class Local:
    """How the files of a task are recognised."""

    hub: str
    """The dataset on the hub."""
    names: tuple[str, ...]
    """Folders of their path, or the beginning of the file's name."""
    columns: tuple[str, ...]
    """The columns of each question."""
    change: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Turns a question into one of the hub's."""
    lists: tuple[str, ...] = ()
    """Columns that are lists."""


def _add_label(question: dict[str, Any]) -> dict[str, Any]:
    return {**question, "label": int(question["answer"])}


KNOWN: Mapping[str, Local] = {
    "boolq": Local("google/boolq", ("boolq",), ("question", "passage", "answer"), _add_label),
    "hellaswag": Local("Rowan/hellaswag", ("hellaswag",), ("ctx_a", "ctx_b", "activity_label", "endings", "label")),
    "lambada_openai": Local("EleutherAI/lambada_openai", ("lambada",), ("text",)),
    "openbookqa": Local("allenai/openbookqa", ("openbookqa",), ("question_stem", "choices", "answerKey")),
    "social_iqa": Local("allenai/social_i_qa", ("social_i_qa",), ("context", "question", "answerA", "label")),
    "wikitext": Local("EleutherAI/wikitext_document_level", ("wikitext",), ("page",)),
    "winogrande": Local("allenai/winogrande", ("winogrande",), ("sentence", "option1", "option2", "answer")),
}
"""Task -> its files where these may deviate from the harness's dataset, or the harness's configuration does not tell
its columns. All other tasks: `ablate.evaluation.localize.describe_files`."""


@dataclass(frozen=True)
class Questions:
    """The local questions of a task."""

    local: Local
    splits: dict[str, Dataset]
    remarks: tuple[str, ...] = ()
    """What is wrong with files that might have been meant."""


class TaskFolder:
    """A folder with the data of tasks. Raises DataError if it is none."""

    def __init__(self, folder: Path) -> None:
        if not os.path.isdir(folder):
            raise DataError(f"There is no folder {folder} with the data of the tasks.")
        self.folder = folder

    @cached_property
    def files(self) -> list[Path]:
        """All files that might contain questions, relative to the folder."""
        files = (file for suffix in _READERS for file in self.folder.rglob(f"*{suffix}") if file.name not in _NOTES)
        return sorted(file.relative_to(self.folder) for file in files if file.is_file())

    def find_questions(self, task: str, local: Local, names: Sequence[str]) -> Questions:
        """Return the questions of `task`, whose splits have these `names`. Raises DataError for a file that cannot be
        read, and for a split in two folders."""
        files: dict[str, dict[Path, list[Dataset]]] = {}
        remarks: list[str] = []
        for file in self._select_files(local):
            if (split := _find_split(file, names)) is None:
                continue
            questions = _read(self.folder / file)
            if fault := _find_fault(questions, local):
                remarks.append(f"{self.folder / file} {fault}")
            else:
                files.setdefault(split, {}).setdefault(file.parent, []).append(questions)
        splits = {split: self._join_parts(task, split, folders, local) for split, folders in files.items()}
        return Questions(local, splits, tuple(remarks))

    def _select_files(self, local: Local) -> list[Path]:
        """Return the files with all names of a dataset in their paths, if there are any as whole names, else as the
        beginnings of names."""
        for matches in (_is_named, _begins_with):
            if files := [file for file in self.files if _matches(file, local.names, matches)]:
                return files
        return []

    def _join_parts(self, task: str, split: str, folders: dict[Path, list[Dataset]], local: Local) -> Dataset:
        from datasets import Dataset, concatenate_datasets

        if len(folders) > 1:
            places = ", ".join(str(self.folder / folder) for folder in folders)
            raise DataError(f"Two folders contain the {split} questions of {task}: {places}. Remove one.")
        (parts,) = folders.values()
        whole = concatenate_datasets(parts)
        return whole if local.change is None else Dataset.from_list([local.change(question) for question in whole])


def _find_fault(questions: Dataset, local: Local) -> str:
    """Return what the columns of a file lack for a task; "" if nothing."""
    if missing := [name for name in local.columns if name not in questions.column_names]:
        return f"has no {', '.join(missing)}"
    schema = questions.features.arrow_schema
    if texts := [name for name in local.lists if not hasattr(schema.field(name).type, "value_type")]:
        return f"has no lists in {', '.join(texts)}: JSON lines, parquet and arrow can contain lists"
    if empty := [name for name in local.columns if questions.data.column(name).null_count]:
        return f"has questions without {', '.join(empty)}"
    return ""


def _find_split(file: Path, names: Sequence[str]) -> str | None:
    """Return the split that a file contains: one of `names` or of `SPLITS`, by the last part of its path that has one;
    None for none."""
    known = SPLITS | {name.lower(): name for name in names}
    for part in reversed(_split_path(file)):
        words = [re.sub(r"-\d+-of-\d+$", "", part), *re.split(r"[-_.]", part)]
        if split := next((known[word] for word in words if word in known), None):
            return split
    return None


def _split_path(file: Path) -> list[str]:
    return [part.lower() for part in (*file.parent.parts, file.stem)]


def _matches(file: Path, names: Sequence[str], matches: Callable[[str, str], bool]) -> bool:
    parts = _split_path(file)
    return all(any(matches(part, name.lower()) for part in parts) for name in names)


def _is_named(part: str, name: str) -> bool:
    """Return whether a part of a path is `name`, alone or after its owner, as in the caches of the hub."""
    return part == name or part.endswith((f"--{name}", f"___{name}"))


def _begins_with(part: str, name: str) -> bool:
    return part == name or part.startswith((f"{name}_", f"{name}-", f"{name}."))


def _read(file: Path) -> Dataset:
    try:
        return _READERS[file.suffix](file)
    except Exception as error:  # whatever json, arrow and the disk raise
        raise DataError(f"{file} cannot be read: {' '.join(str(error).split())}") from None


def _read_table(file: Path) -> Dataset:
    from datasets import Dataset
    from pyarrow import Table

    from ablate.data.readers import open_arrow, open_parquet

    with (open_arrow if file.suffix == ".arrow" else open_parquet)(file) as (schema, batches):
        return Dataset(Table.from_batches(list(batches), schema))  # so that nothing is written beside it


def _read_csv(file: Path) -> Dataset:
    from datasets import Dataset
    from pyarrow import csv

    return Dataset(csv.read_csv(file, parse_options=csv.ParseOptions(newlines_in_values=True)))


def _read_json(file: Path) -> Dataset:
    from datasets import Dataset

    return Dataset.from_list(list(_parse_json(file.read_text(encoding="utf-8-sig"))))


def _parse_json(text: str) -> Iterator[dict[str, Any]]:
    """Yield the questions of a JSON list, of the articles of SQuAD, or of one object in each line."""
    if (articles := _parse_articles(text)) is not None:
        yield from flatten_articles(articles)
        return
    if text.lstrip().startswith("["):
        questions: Iterator[tuple[int, Any]] = enumerate(json.loads(text), 1)
    else:
        questions = ((number, json.loads(line)) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    for number, question in questions:
        if not isinstance(question, dict):
            raise ValueError(f"question {number} is not an object")
        yield question


def _parse_articles(text: str) -> list[Any] | None:
    """Return the articles of a file of SQuAD; None for any other file."""
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else {}
    except ValueError:  # one object in each line
        return None
    articles = content.get("data")
    return articles if isinstance(articles, list) else None


_READERS: Mapping[str, Callable[[Path], Dataset]] = {
    ".arrow": _read_table,
    ".csv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json,
    ".parquet": _read_table,
}
