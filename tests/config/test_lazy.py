"""Modules that are imported on first use; and what needs no tensor imports no torch."""

import ast
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest

import ablate
from ablate.config.errors import AblateError
from ablate.config.lazy import LazyModule, import_library, postpone_imports

ROOT = Path(ablate.__file__).parent
POSTPONED = [
    pytest.param(
        file,
        id=".".join(file.relative_to(ROOT).with_suffix("").parts),
        marks=[pytest.mark.addons] if "from ablate.addons" in file.read_text() else [],
    )
    for file in sorted(ROOT.rglob("*.py"))
    if "\nwith postpone_imports():" in file.read_text()
]


@pytest.mark.parametrize("file", POSTPONED)
def test_what_is_postponed_are_modules(file):
    blocks = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.With)]
    nodes = [node for block in blocks for node in block.body]
    names = [f"{node.module}.{name.name}" for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names]
    names += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    assert names
    for name in names:
        import_module(name)


def test_another_thread_imports_at_once_meanwhile():
    with postpone_imports(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(__import__, "colorsys").result() is sys.modules["colorsys"]
        import wave
    assert isinstance(wave, LazyModule)


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
    ["plan", "none-of-this-name.yaml"],
    ["sweep", "command.yaml", "--dry-run"],
]


HEAVY = ["torch", "lightning", "mlflow", "matplotlib", "transformers"]


def test_nothing_imports_torch_where_no_tensor_is_needed(tmp_path):
    experiment = "{kind: command, run: 'true {lr} {seed}'}"
    arms, rest = "{one: {}}", "search: {lr: [1]}\nobjective: {metric: loss, direction: minimize}\nbudget: {trials: 1}\n"
    (tmp_path / "command.yaml").write_text(f"name: one\nexperiment: {experiment}\narms: {arms}\n{rest}")
    code = f"""
import sys
from ablate.cli import main
for call in {CALLS}:
    assert main(call) == 0 or call[0] != "sweep"
    assert not {{*{HEAVY}}} & {{*sys.modules}}, call
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)


def test_what_is_missing_is_told(monkeypatch, tmp_path):
    assert import_library("json", "hf").loads("1") == 1
    with pytest.raises(AblateError, match=r"needs the library no_such_thing, .* pip install '\.\[eval\]'"):
        import_library("no_such_thing.part", "eval")
    (tmp_path / "broken_thing.py").write_text("import another_thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="another_thing"):
        import_library("broken_thing", "hf")
