"""Writes the committed pages into docs/, or all pages into the folder in the first argument."""

from __future__ import annotations

import sys
from pathlib import Path

from . import BUILT, COMMITTED

DOCS = Path(__file__).parents[1]

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS
for file, build_page in (COMMITTED if folder == DOCS else {**COMMITTED, **BUILT}).items():
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(build_page(DOCS), encoding="utf-8")
