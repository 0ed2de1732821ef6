"""Questions with the spans that answer them, in SQuAD's own files and in the hub's columns (`rajpurkar/squad`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ablate.config.errors import DataError
from ablate.config.formatting import join_first

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
    """Yield the questions of the articles of a SQuAD file (`data`) in the columns of the hub; of SQuAD v2 also whether
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
