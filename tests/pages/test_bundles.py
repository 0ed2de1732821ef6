"""The table of published studies."""

import pytest

from docs.pages import bundles


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
    assert bundles._name(arms) == told
