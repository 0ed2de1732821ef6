"""The interface of a figure: rows of panels, in a registry by what they show."""

from __future__ import annotations

from typing import ClassVar

from ablate.config.errors import AblateError, did_you_mean
from ablate.config.registry import Catalogue
from ablate.diagnostics.figures.rows import Row
from ablate.diagnostics.kinds import PaperFigure, papers


class LayerFigure:
    """A figure of the layers of several models. A subclass sets its `name`, its `title` and its `rows`, the uppermost
    first; the first sentence of its docstring is its description in `ablate list figures`."""

    name: ClassVar[str]
    title: ClassVar[str]
    rows: ClassVar[tuple[Row, ...]]


figures: Catalogue[type[LayerFigure]] = Catalogue("figure")
register = figures.register


def find_figure(name: str) -> tuple[type[LayerFigure], PaperFigure | None]:
    """Return the figure of that name, or of that number of a paper, such as mixln-3, and the description of the paper's
    figure, if it is one.
    Raises AblateError."""
    paper = papers.get(name)
    known = paper.figure if paper else name
    if known not in figures:
        names = [*figures, *papers]
        raise AblateError(f"unknown figure {name!r}. Accepted: {', '.join(names)}.{did_you_mean(name, names)}")
    return figures[known], paper
