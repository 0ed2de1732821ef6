"""The questions of SQuAD with the spans that answer them, in its own files or in the columns of the hub."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ablate.config.errors import DataError
from ablate.config.formatting import join_first
from ablate.data.hub import import_datasets

COLUMNS = ("id", "question", "context", "answers")
"""The columns of the hub. `answers` has two lists of equal length: text, and answer_start, in characters."""
_SHOWN = 3
"""Number of unusable questions with the same fault that a message names."""


class SpanQuestion(NamedTuple):
    """A question on a text."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    """The answers that count as right; at least one."""
    starts: tuple[int, ...]
    """The first character of each answer in `context`."""


def flatten_articles(articles: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the questions of the articles of a SQuAD file (`data`) in the columns of the hub; for SQuAD v2 also whether
    a question `is_impossible`. Raises ValueError for an article of another form."""
    for number, article in enumerate(articles, 1):
        try:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = question.get("answers") or []
                    yield {
                        "id": question["id"],
                        "question": question["question"],
                        "context": paragraph["context"],
                        "answers": {key: [answer[key] for answer in answers] for key in ("text", "answer_start")},
                        "is_impossible": bool(question.get("is_impossible", False)),
                    }
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"article {number} of its data is not in the form of SQuAD ({type(error).__name__}: {error}): "
                "paragraphs with a context and qas, which have an id, a question, and answers with text and "
                "answer_start"
            ) from None


def parse_questions(rows: Iterable[Mapping[str, Any]], source: str) -> list[SpanQuestion]:
    """Return the questions in `rows`, which have the columns of the hub. Raises DataError, with all faults and the ids
    of questions, if some cannot be scored; `source` is where they are from."""
    questions: dict[str, SpanQuestion] = {}
    faults: dict[str, list[str]] = {}
    for row in rows:
        name = str(row["id"])
        fault, detail = ("the id of an earlier question", "") if name in questions else _find_fault(row)
        if fault:
            faults.setdefault(fault, []).append(f"{name}{detail}")
        else:
            texts, starts = (tuple(row["answers"][key]) for key in ("text", "answer_start"))
            questions[name] = SpanQuestion(name, row["question"], row["context"], texts, starts)
    if faults:
        unusable = sum(map(len, faults.values()))
        count = unusable + len(questions)
        lines = [f"{unusable:,} of the {count:,} questions of {source} cannot be scored. Correct or remove them."]
        for fault, ids in faults.items():
            lines.append(f"{len(ids):,} with {fault}: {join_first(ids, _SHOWN)}")
        raise DataError("\n".join(lines))
    if not questions:
        raise DataError(f"There are no questions in {source}.")
    return list(questions.values())


def _find_fault(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return (why a question cannot be scored, a detail of this one); ("", "") if it can."""
    texts = [name for name in ("question", "context") if not isinstance(row[name], str) or not row[name].strip()]
    if texts:
        return f"no text in {' and '.join(texts)}", ""
    if row.get("is_impossible"):
        return "is_impossible, which SQuAD v1.1 does not have", ""
    answers = row["answers"] if isinstance(row["answers"], Mapping) else {}
    answer_texts, starts = answers.get("text"), answers.get("answer_start")
    if not isinstance(answer_texts, list) or not isinstance(starts, list) or len(answer_texts) != len(starts):
        return "answers that are not two lists of equal length, text and answer_start", ""
    if not starts:
        return "no answer", ""
    for text, start in zip(answer_texts, starts, strict=True):
        if not isinstance(text, str) or not isinstance(start, int) or not text.strip():
            return "an answer without text, or without a whole number as answer_start", ""
        if start < 0 or start + len(text) > len(row["context"]):
            return "an answer beyond the context", f" ({text!r} at {start} of {len(row['context'])} characters)"
        if (there := row["context"][start : start + len(text)]) != text:
            return "an answer that is not at its answer_start", f" ({text!r}; at {start} is {there!r})"
    return "", ""


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
