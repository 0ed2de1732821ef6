"""Colours that colour-blind readers can distinguish, and a marker per arm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Looks: TypeAlias = dict[str, tuple[str, str]]  # arm -> (colour, marker)

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "p", "h")  # a prime number of them: no pair repeats for long
GREY = "#7f7f7f"
SHADE = "#f2f2f2"
MAP = "cividis"  # made for colour-blind readers, and even in lightness
SIZE = (7.0, 4.5)  # inches


def choose_looks(arms: Iterable[str]) -> Looks:
    """Return colour and marker of each arm, by its index in the sweep: the same in every figure."""
    return {arm: (PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)]) for i, arm in enumerate(arms)}


def pick_shade(share: float, colours: str = MAP) -> str:
    """Return the colour at a share, from 0 to 1, of a scale."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps[colours](share))
