"""The table of published studies, and the pages of studies: short, and with the answer first."""

from pathlib import Path

import pytest

from ablate.addons.bundles import page

RESULTS = Path(__file__).parents[2] / "docs" / "results"
STUDIES = [page for page in RESULTS.rglob("*.md") if page.name != "index.md" or page.parent != RESULTS]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: str(file.relative_to(RESULTS)))
def test_the_page_of_a_study_is_short_and_begins_with_its_answer(file):
    text = file.read_text(encoding="utf-8")
    first = next(line for line in text.splitlines() if line and not line.startswith("# "))
    assert first.startswith("**")
    assert len(text.split()) <= 600


@pytest.mark.parametrize(
    ("arms", "told"),
    [
        (["pre", "mix"], "pre and mix"),
        (["pre lr=0.1", "pre lr=0.2", "mix lr=0.1"], "pre lr=0.1, pre lr=0.2 and mix lr=0.1"),
        (
            [f"{arm} lr={rate}" for arm in ("pre", "mix") for rate in range(4)],
            "pre at 4 settings and mix at 4 settings",
        ),
        (
            [*(f"pre lr={rate}" for rate in range(6)), "mix lr=1"],
            "pre at 6 settings and mix at 1 setting",
        ),
        ([f"arm{n}" for n in range(8)], "arm0, arm1, arm2, arm3, arm4, arm5, arm6 and arm7"),
    ],
)
def test_many_cells_of_a_grid_are_counted(arms, told):
    assert page._name_arms(arms) == told
