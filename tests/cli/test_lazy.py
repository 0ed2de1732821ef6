"""What a verb imports on first use is what mypy reads."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from ablate import cli

FILES = sorted(Path(cli.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", [file for file in FILES if "= LazyModule(" in file.read_text()], ids=lambda f: f.stem)
def test_both_lists_of_imports_are_the_same(file):
    block = next(
        node for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )  # fmt: skip
    modules = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "ablate":
            for name in node.names:
                modules[name.asname or name.name] = f"{node.module}.{name.name}"
    lazy = {}
    for node in block.orelse:
        targets, values = node.targets[0], node.value
        pairs = zip(targets.elts, values.elts, strict=True) if isinstance(targets, ast.Tuple) else [(targets, values)]
        lazy |= {target.id: value.args[0].value for target, value in pairs}
    for name, module in lazy.items():
        assert modules.pop(name) == module
        import_module(module)
    assert all(not Path(*module.split(".")).with_suffix(".py").exists() for module in modules.values())  # classes
