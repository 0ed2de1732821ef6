"""The pages of docs/ that are written from the code have what the code has; few of them are committed."""

import argparse
import json
import re
import runpy
from pathlib import Path

import pytest

import ablate
from ablate.cli import VERBS, build_parser
from ablate.config.merging import iterate_leaves
from ablate.config.registry import Registry
from ablate.experiment.tree import Experiment
from docs.pages import BUILT, COMMITTED

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """The pages, as `python -m docs.pages FOLDER` writes them."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["docs.pages", str(folder)])
        runpy.run_module("docs.pages", run_name="__main__")
    return {file: (folder / file).read_text(encoding="utf-8") for file in {**COMMITTED, **BUILT}}


@pytest.mark.parametrize("file", COMMITTED)
def test_the_committed_page_is_current(texts, file):
    assert (DOCS / file).read_text(encoding="utf-8") == texts[file], "run `make docs`"


def test_no_other_page_is_committed():
    assert not [file for file in BUILT if (DOCS / file).exists()]


def test_every_verb_has_its_options(texts):
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", texts["reference/cli.md"], re.M | re.S))
    verbs = build_parser()._subparsers._group_actions[0].choices
    assert list(sections) == list(verbs)
    assert len(verbs) == len(VERBS)
    for name, parser in verbs.items():
        shown = {
            word
            for cell in re.findall(r"^\| `([^`]+)` \|", sections[name], re.M)
            for word in cell.replace(",", " ").split()
        }
        options = {o for a in parser._actions if a.help != argparse.SUPPRESS for o in a.option_strings}
        assert {word for word in shown if word.startswith("-")} == options - {"-h", "--help"}, name


def test_every_setting_has_a_row(texts):
    """Every path that `ablate config` prints is the heading of a section and a field of it, or of one of its kinds."""
    tables, rows, heading = {}, set(), ""
    for line in texts["reference/configuration.md"].splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").partition(":")[0]
        elif row := re.match(r"\| `(\w+)` \|", line):
            tables.setdefault(heading, set()).add(row.group(1))
    rows = {
        field if part == "The experiment" else f"{part}.{field}" for part, fields in tables.items() for field in fields
    }
    for family in ("llama", "vit"):
        for path, _ in iterate_leaves(Experiment.from_mapping({"model": family}).to_tree()):
            assert path in rows or path.rpartition(".")[2] == "kind", path
    assert {"warm_start.from", "align.method", "lora.rank", "data.val_sets.NAME.files", "norm.layer.eps"} <= rows


def test_every_kind_has_a_section(texts):
    both = texts["reference/configuration.md"] + texts["reference/sweep-file.md"]
    for registry in Registry.all.values():
        for kind in registry:
            assert re.search(rf"^### [\w.]+: {re.escape(kind)}$", both, re.M), f"{registry.name} {kind}"
        assert all(f"`{name}`" in both for name in registry.presets)


@pytest.mark.parametrize("file", ["reference/configuration.md", "reference/sweep-file.md"])
def test_types_and_defaults_are_those_of_the_schema(texts, file):
    rows = dict(re.findall(r"^\| `(\w+)` \| ((?:.*?) \| (?:.*?)) \| ", texts[file], re.M))
    known = {
        "reference/configuration.md": {"seed": "whole number ≥ 0 | `0`", "drop_path": "number ≥ 0, < 1 | `0.0`"},
        "reference/sweep-file.md": {"low": "number | required", "checkpoints": "`best` or `all` or `none` | `best`"},
    }  # fmt: skip
    for field, cells in known[file].items():
        assert rows[field] == cells


def test_the_python_page_has_every_public_name():
    text = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: ablate\.(\w+)$", text, re.M)) == sorted(set(ablate.__all__) - {"__version__"})


def test_the_notebook_is_the_page(texts):
    cells = json.loads(texts["how-to/python.ipynb"])["cells"]
    page = (DOCS / "how-to" / "python.md").read_text(encoding="utf-8")
    code = ["".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code"]
    assert "ablate_sweeps-*.whl" in code.pop(0)  # for Colab
    assert code == re.findall(r"```python\n(.*?)```", page, re.S)
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    joined = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert joined == re.sub(r"```python\n.*?```\n", "", page, flags=re.S).replace("\n\n\n", "\n\n").strip()
