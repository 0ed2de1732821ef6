"""Writes the pages into docs/, or into the folder in the first argument."""

from __future__ import annotations

import sys
from pathlib import Path

from . import PAGES

docs = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
for file, build_page in PAGES.items():
    (docs / file).write_text(build_page(docs), encoding="utf-8")
