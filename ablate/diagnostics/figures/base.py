"""The interface of a figure: rows of panels, in a registry by what they show."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from ablate.config.errors import AblateError, did_you_mean
from ablate.diagnostics.figures.papers import PAPERS, PaperFigure
from ablate.diagnostics.figures.rows import Row


class LayerFigure:
    """A figure of the layers of several models. A subclass sets its `name`, its `title` and its `rows`, the uppermost
    first; the first sentence of its docstring is its description in `ablate list figures`."""

    name: ClassVar[str]
    title: ClassVar[str]
    rows: ClassVar[tuple[Row, ...]]


F = TypeVar("F", bound=type[LayerFigure])
figures: dict[str, type[LayerFigure]] = {}
"""Name -> figure."""


def register(cls: F) -> F:
    """Add a figure under its name; a class decorator."""
    if cls.name in figures or cls.name in PAPERS:
        raise ValueError(f"figure {cls.name!r} is already registered")
    figures[cls.name] = cls
    return cls


def find_figure(name: str) -> tuple[type[LayerFigure], PaperFigure | None]:
    """Return the figure of that name, or of that number of a paper, such as mixln-3, and what is known of the paper's.
    Raises AblateError."""
    paper = PAPERS.get(name)
    known = paper.figure if paper else name
    if known not in figures:
        names = [*figures, *PAPERS]
        raise AblateError(f"unknown figure {name!r}. Accepted: {', '.join(names)}.{did_you_mean(name, names)}")
    return figures[known], paper
