"""Markdown: text from outside, and tables."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_MARKUP = re.compile(
    r"""[\\`*{]             # escapes, code, emphasis, attributes of an element
    |(?<![^\W_])_|_(?![^\W_])  # emphasis: an underscore within a word is none
    |\](?=[(\[:])           # the end of a link's or an image's text, or of the name of an address,
    |\[(?=[^\[\]\n]*\]:)    # and the beginning of such a name
    |^\#""",
    re.VERBOSE | re.MULTILINE,
)


def escape(text: str) -> str:
    """Return plain text, such as a name that somebody else has chosen, as Markdown that shows it as it is: without
    elements of HTML, links, images and emphasis."""
    return html.escape(_MARKUP.sub(r"\\\g<0>", text), quote=False)


def format_code(text: str) -> str:
    """Return text as code, in which nothing is markup."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, pad = "`" * (longest + 1), " " * bool(longest)
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}"


def build_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )
