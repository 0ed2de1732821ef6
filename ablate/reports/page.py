"""A report as one self-contained HTML file: no fonts, no scripts, no other files, no network. The answer comes first,
the rest is folded; figures are SVG, whose points have titles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from ablate.plots.drawing import to_svg
from ablate.plots.figure import Figure
from ablate.reports.section import Document, Section, Table

RULES = "How the verdict was reached"
"""The part of the details that has the sentences of the main results."""
LONG = 900  # letters of an answer that is folded below its summary
_STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
ToSvg = Callable[[Figure], str]


def render(document: Document, draw: ToSvg = to_svg) -> str:
    """Return the page; all values are escaped. `draw`: draws a figure, whose SVG may already be there."""
    full = _wrap("p", document.statements)
    if document.summary:
        brief = f"<p><strong>{escape(document.summary)}</strong></p>\n"
        full = brief + (fold("In full", full) if len(full) > LONG else full)
    notes, details = _wrap("li", document.notes), document.details
    if details and (rules := [text for section in document.answers for text in section.sentences]):
        details = {RULES: [], **details}
        details[RULES] = [Section("", sentences=rules), *details[RULES]]
    folded = {**details, **document.appendix}
    return build_page(
        document.title,
        [
            f"<header><h1>{escape(document.title)}<small>{escape(document.question)}</small></h1>",
            f"{warn(document.warning)}</header>",
            f'<section class="verdict">{full}</section>' if full else "",
            *(show_section(section, not details) for section in document.answers),
            _show_figures(document.figures, draw),
            f"<section><h2>Before you rely on these results</h2><ul>{notes}</ul></section>" if notes else "",
            "<h2>Details</h2>" if folded else "",
            *(
                fold(title, "".join(show_section(section, draw=draw) for section in sections))
                for title, sections in folded.items()
            ),
        ],
    )


def build_page(title: str, parts: Iterable[str]) -> str:
    """Return a page with `parts`, which are HTML."""
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}: report</title>\n<style>\n{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def show_section(section: Section, with_sentences: bool = True, draw: ToSvg = to_svg) -> str:
    """Return a section as HTML."""
    parts = [
        f"<h3>{escape(section.title)}</h3>" if section.title else "",
        show_table(section.table, section.title) if section.table else "",
        _wrap("p", section.sentences) if with_sentences else "",
        f"<pre>{escape(section.code)}</pre>" if section.code else "",
        _show_figures(section.figures, draw),
    ]
    return f"<section>{''.join(parts)}</section>"


def show_table(table: Table, label: str) -> str:
    """Return a table, in a box of its own that scrolls where it is too wide."""
    kinds = [' class="words"' if column.words else "" for column in table.columns]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for kind, name in zip(kinds, table.header, strict=True))
    rows = []
    for number, (first, *cells) in enumerate(table.rows):
        strong = ' class="strong"' if number in table.strong else ""
        shown = "".join(f"<td{kind}>{_keep_together(cell)}</td>" for kind, cell in zip(kinds[1:], cells, strict=True))
        rows.append(f'<tr{strong}><th scope="row" class="words">{escape(first)}</th>{shown}</tr>')
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table></div>"
    )


def _show_figures(figures: Iterable[Figure], draw: ToSvg) -> str:
    shown = "\n".join(show_figure(figure, draw) for figure in figures)
    return f'<div class="figures">{shown}</div>' if shown else ""


def show_figure(figure: Figure, draw: ToSvg = to_svg) -> str:
    """Return a figure with its caption."""
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>"
    return f'<figure id="{escape(figure.name)}">\n{draw(figure)}{caption}</figure>'


def fold(title: str, content: str) -> str:
    """Return a part that a click opens."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def warn(text: str) -> str:
    """Return a warning; "" without one."""
    return f'<div class="verdict warn"><p><strong>{escape(text)}</strong></p></div>' if text else ""


def _wrap(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>\n" for text in texts)


def _keep_together(text: str) -> str:
    """Return `text` with no-break spaces in numbers: a narrow cell breaks between them."""
    return escape(text).replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")
