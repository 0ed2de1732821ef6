"""how-to/python.ipynb: the page how-to/python.md as a notebook, without outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

INSTALL = """\
# Where Ablate is not installed, as in Colab: run `pip wheel --no-deps .` in a clone, upload the wheel, run this cell.
import glob, importlib.util, subprocess, sys
if importlib.util.find_spec("ablate_sweeps") is None:
    wheels = glob.glob("ablate_sweeps-*.whl") or sys.exit("There is no file ablate_sweeps-*.whl here: upload it first.")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", wheels[0]], check=True)
"""
_CODE = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def build_notebook(page: Path) -> str:
    """Return the notebook of a Markdown page: its Python blocks are the code cells, everything between them is text.
    After the first text a cell installs Ablate where it is not installed."""
    parts = _CODE.split(page.read_text(encoding="utf-8"))
    parts[1:1] = [INSTALL, ""]
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(parts):
        if source := part.strip().splitlines(keepends=True):
            kind = "code" if number % 2 else "markdown"  # `split` puts what the pattern caught at the odd places
            own: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
            cells.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source, **own})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "colab": {"name": page.stem}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
