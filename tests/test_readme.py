"""README is short, and its parts are there. What it says is tested with all other pages in `test_docs.py`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 90
    assert len(TEXT.split()) <= 700


def test_how_it_is_fair_takes_five_lines():
    (section,) = re.findall(r"^## How it is fair\n\n(.*?)\n\n", TEXT, re.M | re.S)
    assert len(section.splitlines()) == 5


def test_the_files_in_sweeps_begin_with_their_question():
    for file in (ROOT / "sweeps").glob("*.yaml"):
        text = file.read_text(encoding="utf-8")
        assert text.startswith("# "), file
        assert f" sweeps/{file.name}" in text, file
