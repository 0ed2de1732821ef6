"""README is short, and its parts are there. What it says is tested with all other pages in `test_docs.py`."""

import re
from pathlib import Path

import pytest

from ablate.sweeps.spec.files import load_sweeps

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120
    assert len(TEXT.split()) <= 1000


def test_how_it_is_fair_takes_five_lines():
    (section,) = re.findall(r"^## How it is fair\n\n(.*?)\n\n## ", TEXT, re.M | re.S)
    assert len(section.splitlines()) == 5


@pytest.mark.parametrize("file", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_files_in_sweeps_are_valid_and_begin_with_their_question(file):
    names = [sweep.name for sweep in load_sweeps(file)]
    assert names == [file.stem] or all(name.startswith(f"{file.stem}-") for name in names)
    assert file.read_text(encoding="utf-8").splitlines()[0].startswith("# ")
    assert f" sweeps/{file.name}" in file.read_text(encoding="utf-8")
