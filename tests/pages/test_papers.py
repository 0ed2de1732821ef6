"""The list of the papers' tables and figures is complete, and what it names is there."""

import re
from pathlib import Path

import pytest
import yaml

from ablate.scheduler.dry_run import describe_cost
from docs.pages.papers import list_sweeps

ROOT = Path(__file__).parents[2]
PAPERS = {paper["title"][0]: paper for paper in yaml.safe_load((ROOT / "docs/papers.yaml").read_text())}
PARTS = [(key, part) for key, paper in PAPERS.items() for part in paper["parts"]]
NUMBERED = {  # as they stand in the papers, of C in version 5
    "M": {"table": 8, "figure": 6},
    "C": {"table": 8, "figure": 8},
    "R": {"table": 10, "figure": 7},
    "E": {"table": 5},
}
NOT_THERE = {("R", "table", 9)}  # the copy that was read goes from table 8 to table 10


def list_numbers(name, word):
    """The numbers of tables, or of figures, in a name such as `Tables 2 and 3, figures 1 and 2`."""
    found = re.search(rf"(?i)\b{word}s? (\d+)(?: and (\d+))?", name)
    return [int(number) for number in found.groups() if number] if found else []


@pytest.mark.parametrize(("key", "word"), [(key, word) for key in NUMBERED for word in NUMBERED[key]])
def test_each_table_and_figure_is_named_once(key, word):
    named = [number for part in PAPERS[key]["parts"] for number in list_numbers(part["name"], word)]
    wanted = [n for n in range(1, NUMBERED[key][word] + 1) if (key, word, n) not in NOT_THERE]
    assert sorted(named) == wanted


def test_each_part_has_a_command_or_says_why_not():
    for key, part in PARTS:
        assert set(part) <= {"name", "shows", "commands", "ran", "missing"}, part["name"]
        assert part.get("commands") or part.get("missing"), f"{key}, {part['name']}"


def test_each_file_for_a_paper_is_named():
    """A sweep file that quotes published figures or says which table it is of."""
    named = {spec.name for _, part in PARTS for spec in list_sweeps(part.get("commands", ()), ROOT)}
    for file in sorted((ROOT / "sweeps").glob("*.yaml")):
        if "published:" in file.read_text():
            assert any(name == file.stem or name.startswith(f"{file.stem}-") for name in named), file.stem


def test_the_costs_of_the_guide_are_those_of_the_file():
    guide = (ROOT / "docs/how-to/papers.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d[\w-]*) \| ([\d.,]+ to [\d.,]+) \|$", guide, re.M))
    assert {spec.name.removeprefix("mixln-table1-"): describe_cost(spec).partition(", ")[2] for spec in list_sweeps(
        ["ablate sweep sweeps/mixln-table1.yaml"], ROOT
    )} == {size: f"{hours} H100 hours" for size, hours in rows.items()}  # fmt: skip


def test_sizes_are_read_from_the_command():
    (only,) = list_sweeps(["ablate list models", "ablate sweep sweeps/mixln-table1.yaml --size 71m"], ROOT)
    assert only.name == "mixln-table1-71m"
