"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def build_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells may contain any text without line breaks."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(_escape_cell(cell) for cell in line) + " |\n" for line in lines)


def _escape_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
