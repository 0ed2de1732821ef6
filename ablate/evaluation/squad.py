"""The questions of SQuAD, in local files or on the hub, for models that answer with a span of the text."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError
from ablate.data.spans.questions import COLUMNS, SpanQuestion, parse_questions
from ablate.evaluation.local import Local, TaskFolder
from ablate.evaluation.localize import SUBSTITUTES, explain_missing

_log = logging.getLogger(__name__)

NAME = "squad"
LOCAL = Local("rajpurkar/squad", (NAME,), COLUMNS)
SCORED = "validation"
"""The split that is scored: the test questions of SQuAD are not published."""


def load_questions(task_data: str | Path | None = None, limit: int | None = None) -> list[SpanQuestion]:
    """Return the questions of SQuAD, the first `limit` of them.

    Args:
        task_data: a folder with `squad/validation.*` in the columns of the hub, or `squad/dev-v1.1.json`; None: the
            hub.
        limit: number of questions, from the start; None: all.

    Raises DataError where they are missing, or unusable, with all faults.
    """
    rows = _open_hub() if task_data is None else _open_files(Path(task_data).expanduser())
    source = "rajpurkar/squad" if task_data is None else f"squad under {task_data}"
    return parse_questions(islice(rows, limit), source)


def _open_files(folder: Path) -> Iterable[Mapping[str, Any]]:
    questions = TaskFolder(folder).find_questions(NAME, LOCAL, (SCORED, SUBSTITUTES[SCORED], "train"))
    if SCORED in questions.splits:
        return questions.splits[SCORED]
    if (other := SUBSTITUTES[SCORED]) in questions.splits:
        _log.warning(f"squad: scored on the {other} questions, since there are no {SCORED} questions under {folder}.")
        return questions.splits[other]
    text = " ".join(explain_missing({NAME: (questions, SCORED)}, folder))
    raise DataError(f"{text} SQuAD's own file squad/dev-v1.1.json is read, too.")


def _open_hub() -> Iterable[Mapping[str, Any]]:
    from datasets import load_dataset

    try:
        return load_dataset(LOCAL.hub, split=SCORED)
    except Exception as error:  # whatever datasets, the disk and the network raise
        text = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"The questions of squad cannot be loaded: {text}. Local files: --task-data FOLDER.") from error
