"""CONTRIBUTING shows where things are: its tables are held to the tree, its rooms to the contracts of the floors."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()
PATHS = re.findall(r"^\| [^|]+ \| `(ablate/[^`]+)` \|$", GUIDE, re.M)
ROOMS = [path for path in PATHS if path.endswith("/")]


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.addons] if "/addons/" in path else []) for path in PATHS]
)
def test_every_place_in_the_tables_exists(path):
    assert (ROOT / path).exists()


@pytest.mark.addons
def test_the_table_has_every_room_in_the_order_of_the_floors():
    assert {path.split("/")[1] for path in ROOMS} == {
        file.parent.name for file in (ROOT / "ablate").glob("*/__init__.py")
    }
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = [set(floor.split(" | ")) for floor in next(c for c in contracts if c["type"] == "layers")["layers"]]
    heights = [next(i for i, floor in enumerate(floors) if path.split("/")[1] in floor) for path in ROOMS]
    assert heights == sorted(heights)
