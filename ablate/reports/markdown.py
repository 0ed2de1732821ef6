"""A report in Markdown, to be pasted into a pull request or an issue, and its sections for other pages."""

from __future__ import annotations

from ablate.config.markdown import build_table, escape
from ablate.reports.section import Document, Section, Table


def render(document: Document) -> str:
    """Return the report: its answer in one line, the main tables, and the rest folded."""
    folded = [
        *([Section("", sentences=document.statements)] if document.summary else []),
        *(Section("", sentences=section.sentences) for section in document.answers),
        *(section for sections in document.details.values() for section in sections),
    ]
    parts = [
        f"**{escape(document.title)}**: {escape(document.question)}",
        escape(document.warning),
        *([escape(document.summary)] if document.summary else map(escape, document.statements)),
        *(show_table(section.table) for section in document.answers if section.table),
        *(escape(note) for note in document.notes),
        "<details><summary>In full, and what this does not show</summary>",
        *(show_section(section, "**{}**") for section in folded),
        "</details>",
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def show_section(section: Section, heading: str = "## {}") -> str:
    """Return a section: its title as `heading` gives it, its table and its sentences."""
    table = show_table(section.table) if section.table else ""
    title = heading.format(escape(section.title)) if section.title else ""
    return "\n\n".join(part for part in (title, table, *map(escape, section.sentences)) if part)


def show_table(table: Table) -> str:
    """Return a table of plain texts."""
    return build_table([escape(name) for name in table.header], ([escape(cell) for cell in row] for row in table.rows))
