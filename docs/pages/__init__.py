"""The pages of docs/ that are written from the code. The build of the site writes them into it (`hook.py`); those that
people read in the repository are committed too, and `python -m docs.pages` or `make docs` writes them anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from . import bundles, configuration, norms, notebook, papers, verbs

COMMITTED: Mapping[str, Callable[[Path], str]] = {"reference/norms.md": lambda docs: norms.build_page()}
BUILT: Mapping[str, Callable[[Path], str]] = {
    "reference/cli.md": lambda docs: verbs.build_page(),
    "reference/configuration.md": lambda docs: configuration.build_experiment_page(),
    "reference/sweep-file.md": lambda docs: configuration.build_sweep_page(),
    "reference/bundle.schema.json": lambda docs: bundles.build_schema(),
    "results/published.md": bundles.build_page,
    "papers.md": papers.build_page,
    "how-to/python.ipynb": lambda docs: notebook.build_notebook(docs / "how-to" / "python.md"),
}
"""File in docs/ -> the function that returns its text, given that folder."""
