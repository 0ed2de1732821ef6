"""The questions of a task in local files, found in a folder by the names of files and their columns."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset

SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "dev": "validation"}
SPLITS |= {"test": "test"}
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


def _add_label(question: dict[str, Any]) -> dict[str, Any]:
    return {**question, "label": int(question["answer"])}


KNOWN: Mapping[str, Local] = {
    "arc_easy": Local("allenai/ai2_arc", ("ai2_arc", "ARC-Easy"), ("question", "choices", "answerKey")),
    "arc_challenge": Local("allenai/ai2_arc", ("ai2_arc", "ARC-Challenge"), ("question", "choices", "answerKey")),
    "boolq": Local("google/boolq", ("boolq",), ("question", "passage", "answer"), _add_label),
    "hellaswag": Local("Rowan/hellaswag", ("hellaswag",), ("ctx_a", "ctx_b", "activity_label", "endings", "label")),
    "lambada_openai": Local("EleutherAI/lambada_openai", ("lambada",), ("text",)),
    "openbookqa": Local("allenai/openbookqa", ("openbookqa",), ("question_stem", "choices", "answerKey")),
    "piqa": Local("baber/piqa", ("piqa",), ("goal", "sol1", "sol2", "label")),
    "sciq": Local("allenai/sciq", ("sciq",), ("question", "correct_answer", "distractor1", "support")),
    "social_iqa": Local("allenai/social_i_qa", ("social_i_qa",), ("context", "question", "answerA", "label")),
    "wikitext": Local("EleutherAI/wikitext_document_level", ("wikitext",), ("page",)),
    "winogrande": Local("allenai/winogrande", ("winogrande",), ("sentence", "option1", "option2", "answer")),
}
"""Task -> its files, with the names and columns of the hub."""


def find_questions(task: str, folder: Path) -> dict[str, Dataset]:
    """Return split (train, validation, test) -> the questions of `task` under `folder`.

    Raises DataError if there are none, with the accepted files and their origin.
    """
    if (local := KNOWN.get(task)) is None:
        raise DataError(
            f"Local files of {task} cannot be read. Accepted tasks: {', '.join(KNOWN)}. Omit --task-data for other "
            "tasks."
        )
    if not os.path.isdir(folder):
        raise DataError(f"There is no folder {folder} with the data of {task}.")
    files: dict[str, dict[Path, list[Dataset]]] = {}
    others: list[str] = []
    for file in sorted(file for suffix in _READERS for file in folder.rglob(f"*{suffix}")):
        if file.name in _NOTES or (split := _find_split(file.relative_to(folder), local)) is None:
            continue
        questions = _read(file)
        if missing := [name for name in local.columns if name not in questions.column_names]:
            others.append(f"{file} has no {', '.join(missing)}")
        else:
            files.setdefault(split, {}).setdefault(file.parent, []).append(questions)
    if not any(split in files for split in ("validation", "test")):
        place = "/".join(local.names)
        text = f"There are no questions of {task} under {folder}: no {place}/validation/*.arrow (or .jsonl, .json, "
        text += f".parquet; or test) with {', '.join(local.columns)}."
        text += "".join(f" {other}." for other in others[:3])
        raise DataError(
            f"{text} The dataset is {local.hub} on the Hugging Face hub, which is read without --task-data."
        )
    return {split: _join_parts(task, split, folders, local) for split, folders in files.items()}


def _join_parts(task: str, split: str, folders: dict[Path, list[Dataset]], local: Local) -> Dataset:
    from datasets import Dataset, concatenate_datasets

    if len(folders) > 1:
        raise DataError(
            f"Two folders contain the {split} questions of {task}: {', '.join(map(str, folders))}. Remove one."
        )
    (parts,) = folders.values()
    whole = concatenate_datasets(parts)
    return whole if local.change is None else Dataset.from_list([local.change(question) for question in whole])


def _find_split(file: Path, local: Local) -> str | None:
    """Return the split that a file contains; None for a file of another task."""
    parts = [part.lower() for part in (*file.parent.parts, file.stem)]
    if not all(any(_matches(part, name.lower()) for part in parts) for name in local.names):
        return None
    words = [word for part in reversed(parts) for word in re.split(r"[-_.]", part)]
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def _matches(part: str, name: str) -> bool:
    return part == name or part.startswith((f"{name}_", f"{name}-", f"{name}."))


def _read(file: Path) -> Dataset:
    try:
        return _READERS[file.suffix](file)
    except Exception as error:  # whatever json, arrow and the disk raise
        raise DataError(f"{file} cannot be read: {' '.join(str(error).split())}") from None


def _read_arrow(file: Path) -> Dataset:
    from datasets import Dataset

    return Dataset.from_file(str(file), in_memory=True)  # so that nothing is written beside it


def _read_parquet(file: Path) -> Dataset:
    from datasets import Dataset
    from pyarrow import parquet

    return Dataset(parquet.read_table(file))


def _read_json(file: Path) -> Dataset:
    from datasets import Dataset

    return Dataset.from_list(list(_parse_json(file.read_text(encoding="utf-8"))))


def _parse_json(text: str) -> Iterator[dict[str, Any]]:
    """Yield the questions of a JSON list, or of one object in each line."""
    if text.lstrip().startswith("["):
        yield from json.loads(text)
    else:
        yield from (json.loads(line) for line in text.split("\n") if line.strip())


_READERS: Mapping[str, Callable[[Path], Dataset]] = {
    ".arrow": _read_arrow,
    ".jsonl": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
