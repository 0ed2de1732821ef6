"""Adds the pages that are written from the code to the site, when MkDocs builds or serves it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Return the files of docs/ and the pages that are built."""
    sys.path.insert(0, str(ROOT))
    from docs.pages import BUILT

    for file, build_page in BUILT.items():
        files.append(File.generated(config, file, content=build_page(ROOT / "docs")))
    return files
