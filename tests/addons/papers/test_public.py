"""The papers' addon is a plugin: it imports what the guide lists and nothing more, and nothing imports it."""

import ast
import re
from pathlib import Path

import pytest

import ablate

PACKAGE = Path(ablate.__file__).parent
PAPERS = "ablate.addons.papers"
FILES = sorted((PACKAGE / "addons/papers").rglob("*.py"))


def list_imports(file):
    """The modules of ours that `file` imports, also for types and by name on first use."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from [f"{node.module}.{one.name}" for one in node.names] if node.module in PARENTS else [node.module]
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"ablate(\.\w+)+(:\w+)?", str(node.value)):
            yield node.value.partition(":")[0]


PARENTS = ("ablate.training", "ablate.addons", "ablate.diagnostics", "ablate.config")
GUIDE = (PACKAGE.parent / "docs/reference/plugins.md").read_text(encoding="utf-8")
PUBLIC = {*re.findall(r"`(ablate\.[\w.]+)`", GUIDE.partition("## What a plugin may import")[2].partition("\n## ")[0])}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_imports_only_what_the_guide_lists(file):
    ours = {name for name in list_imports(file) if name.split(".")[0] == "ablate" and not name.startswith(PAPERS)}
    assert ours <= PUBLIC


def test_nothing_imports_it():
    others = [file for file in PACKAGE.rglob("*.py") if file not in FILES]
    naming = [file for file in others if any(name.startswith(PAPERS) for name in list_imports(file))]
    assert naming == [PACKAGE / "config/plugins.py"]  # which loads it as it loads an installed plugin
