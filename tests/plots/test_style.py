"""Looks of arms in figures."""

from ablate.plots import style


def test_arms_look_different_and_keep_their_looks():
    looks = style.choose_looks(f"arm {i}" for i in range(20))
    assert len(set(looks.values())) == 20
    assert len({colour for colour, _ in list(looks.values())[:7]}) == 7
