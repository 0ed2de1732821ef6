"""What a module imports on first use is what mypy reads; and what needs no tensor imports no torch."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import ablate

ROOT = Path(ablate.__file__).parent
FILES = sorted(file for file in ROOT.rglob("*.py") if "= LazyModule(" in file.read_text())


@pytest.mark.parametrize("file", FILES, ids=lambda file: ".".join(file.relative_to(ROOT).with_suffix("").parts))
def test_both_lists_of_imports_are_the_same(file):
    block = next(
        node for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )  # fmt: skip
    modules = {}
    for node in block.body:
        if isinstance(node, ast.Import):
            modules |= {name.asname or name.name: name.name for name in node.names}
        elif node.module.split(".")[0] == "ablate":
            modules |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    lazy = {}
    for node in block.orelse:
        targets, values = node.targets[0], node.value
        pairs = zip(targets.elts, values.elts, strict=True) if isinstance(targets, ast.Tuple) else [(targets, values)]
        lazy |= {target.id: value.args[0].value for target, value in pairs}
    for name, module in lazy.items():
        assert modules.pop(name) == module
        import_module(module)
    assert all(not Path(*module.split(".")).with_suffix(".py").exists() for module in modules.values())  # classes


POSTPONED = sorted(file for file in ROOT.rglob("*.py") if "\nwith postpone_imports():" in file.read_text())


@pytest.mark.parametrize("file", POSTPONED, ids=lambda file: ".".join(file.relative_to(ROOT).with_suffix("").parts))
def test_what_is_postponed_are_modules(file):
    blocks = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.With)]
    nodes = [node for block in blocks for node in block.body]
    names = [f"{node.module}.{name.name}" for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names]
    names += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    assert names
    for name in names:
        import_module(name)


CALLS = [
    ["list", "placements"],
    ["list", "data"],
    ["list"],
    ["list", "tasks"],
    ["list", "samplers"],
    ["list", "metrics"],
    [
        "config",
        "model=vit-tiny",
        "data=imagenet",
        "trainer.callbacks=LearningRateMonitor",
        "trainer.loggers=WandbLogger",
    ],
    ["train", "norm=mix", "norm.alfa=1"],
    ["config", "--schema"],
    ["status", "none-of-this-name"],
]


HEAVY = ["torch", "lightning", "mlflow", "matplotlib", "transformers"]


def test_nothing_imports_torch_where_no_tensor_is_needed(tmp_path):
    code = f"""
import sys
from ablate.cli import main
for call in {CALLS}:
    main(call)
    assert not {{*{HEAVY}}} & {{*sys.modules}}, call
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
