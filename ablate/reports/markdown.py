"""Sections in Markdown."""

from __future__ import annotations

from ablate.config.markdown import build_table, escape
from ablate.reports.section import Section, Table


def show_section(section: Section, heading: str = "## {}") -> str:
    """Return a section: its title as `heading` gives it, its table and its sentences."""
    table = show_table(section.table) if section.table else ""
    title = heading.format(escape(section.title)) if section.title else ""
    return "\n\n".join(part for part in (title, table, *map(escape, section.sentences)) if part)


def show_table(table: Table) -> str:
    """Return a table of plain texts."""
    return build_table([escape(name) for name in table.header], ([escape(cell) for cell in row] for row in table.rows))
