"""The kinds that plugins add to `ablate diagnose` besides measurements (`measures.measurements`) and figures
(`figures.figures`): comparisons of weights, heads of models of `transformers`, and figures of papers. It needs
no torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ablate.config.registry import Catalogue


class Table(NamedTuple):
    """A table of a comparison, as it is printed."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()
    """Columns that are aligned to the right."""
    note: str = ""
    """A line below."""


class Compared(NamedTuple):
    """The result of a comparison."""

    content: Mapping[str, Any]
    """Plain values, which `--json` prints."""
    tables: Sequence[Table]


class Comparison(ABC):
    """A kind of `ablate diagnose` that compares the weights of models without running them on data, and that is asked
    for alone: `--what NAME`."""

    name: ClassVar[str]
    options: ClassVar[Sequence[str]] = ()
    """Options of the command that no other kind takes, such as pairs for --pairs."""

    @abstractmethod
    def compare(self, models: Mapping[str, str], options: Mapping[str, Any]) -> Compared:
        """Return the comparison of `models`: run's id, checkpoint or exported folder -> its name on the command line.
        `options` are all options of the command by name. Raises AblateError."""


class TaskHead(ABC):
    """Models of `transformers` that answer one task by a head of their own, whose questions are their data."""

    name: ClassVar[str]
    """The task, as in `--tasks`."""
    noun: ClassVar[str]
    """The noun for the head, such as "span head"."""
    advice: ClassVar[str]
    """Advice for a user who gives a model without such a head."""

    @abstractmethod
    def accepts(self, config: Any) -> bool:
        """Return whether a model with this configuration of transformers has such a head."""

    @abstractmethod
    def open(self, name: str, config: Any, opening: Any) -> Any:
        """Return the model of the folder, or of the hub's repository, `name`, with the questions of the task: an
        `Opened` of the settings `opening`, an `Opening`, both of `ablate.diagnostics.opening`. Raises AblateError."""


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper."""

    name: str
    """Paper and number, as in `--what figure:NAME`."""
    title: str
    figure: str
    """The figure of `figures.figures` that shows the same."""
    models: str
    """The content of the paper's figure, or the models in it."""
    tasks: tuple[str, ...] = ()
    """The tasks by which the paper measures the performance without a layer."""
    note: str = ""
    """Details that are unknown, or differ here."""


comparisons: Catalogue[type[Comparison]] = Catalogue("comparison")
heads: Catalogue[type[TaskHead]] = Catalogue("task with a head")
papers: Catalogue[PaperFigure] = Catalogue("figure of a paper")
