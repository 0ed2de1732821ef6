"""Adds the pages that are written from the code to the site, when MkDocs builds or serves it."""

from __future__ import annotations

import sys
from importlib import import_module
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
    built = import_module("docs.pages").BUILT  # docs/ is no package: mypy would find the module under two names
    for file, build_page in built.items():
        files.append(File.generated(config, file, content=build_page(ROOT / "docs")))
    return files
