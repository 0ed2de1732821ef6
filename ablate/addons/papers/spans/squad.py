"""The questions of SQuAD, in local files or on the hub, for models that answer with a span of the text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ablate.addons.papers.spans.questions import COLUMNS, SpanQuestion, flatten_articles, parse_questions
from ablate.config.errors import DataError
from ablate.data.hub import import_datasets

NAME = "squad"
HUB = "rajpurkar/squad"
SCORED = "validation"
"""The split that is scored: the test questions of SQuAD are not published."""


def load_questions(task_data: str | Path | None = None, limit: int | None = None) -> list[SpanQuestion]:
    """Return the questions of SQuAD, the first `limit` of them.

    Args:
        task_data: a folder with `squad/dev-v1.1.json`, or `squad/` laid out as on the hub; None: the hub.
        limit: number of questions, from the start; None: all.

    Raises DataError where they are missing, or unusable, with all faults.
    """
    rows = _open_hub() if task_data is None else _open_files(Path(task_data).expanduser())
    source = HUB if task_data is None else f"squad under {task_data}"
    return parse_questions(islice(rows, limit), source)


def _open_files(folder: Path) -> Iterable[Mapping[str, Any]]:
    own = folder / NAME / "dev-v1.1.json"
    try:
        if own.is_file():
            return list(flatten_articles(json.loads(own.read_text(encoding="utf-8-sig"))["data"]))
        if not own.parent.is_dir():
            raise DataError(
                f"There are no questions of {HUB} under {folder}: no folder {own.parent}. On a machine with a network: "
                f"hf download {HUB} --repo-type dataset --local-dir {own.parent}"
            )
        rows = list(import_datasets().load_dataset(str(own.parent), split=SCORED, streaming=True))
        if missing := [name for name in COLUMNS if rows and name not in rows[0]]:
            raise DataError(f"{own.parent} has no {', '.join(missing)}.")
        return rows
    except DataError:
        raise
    except Exception as error:  # whatever json, datasets and the disk raise
        place = own if own.is_file() else own.parent
        raise DataError(f"{place} cannot be read: {' '.join(str(error).split())}") from None


def _open_hub() -> Iterable[Mapping[str, Any]]:
    try:
        return import_datasets().load_dataset(HUB, split=SCORED)
    except Exception as error:  # whatever datasets, the disk and the network raise
        text = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"The questions of squad cannot be loaded: {text}. Local files: --task-data FOLDER.") from error
