"""Several panels in one figure, and how a figure is saved."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL = (3.3, 2.9)  # inches
ACROSS = 4  # panels side by side


def create_panels(
    title: str, names: Sequence[str], width: float | None = None, across: int = ACROSS
) -> tuple[Figure, list[Axes]]:
    """Return a figure with one axes for each name, `across` side by side; no global state of pyplot is touched."""
    from matplotlib.figure import Figure

    columns = min(across, len(names))
    rows = -(-len(names) // columns)
    size = (width or columns * PANEL[0] + 0.9, rows * (PANEL[1] + 0.2) + 0.7)
    figure = Figure(figsize=size, dpi=style.DPI, layout="constrained")
    figure.suptitle(fold_label(title, int(11 * size[0])), fontsize=12, x=0.01, ha="left")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in axes[len(names) :]:
        empty.set_visible(False)
    return figure, axes[: len(names)]


def tick_layers(panel: Axes, both: bool = False) -> None:
    """Place the ticks of the x axis, or of both axes, at whole numbers: layers."""
    for axis in (panel.xaxis, panel.yaxis) if both else (panel.xaxis,):
        axis.set_major_locator(load_ticker().MaxNLocator(8, integer=True, min_n_ticks=1))


def load_ticker() -> Any:
    """Return matplotlib.ticker, imported on first use."""
    from matplotlib import ticker

    return ticker


def fold_label(label: str, width: int = 34) -> str:
    """Return a label in lines that fit beside a panel."""
    return "\n".join(textwrap.wrap(label, width))


def save_png(figure: Figure, file: Path) -> None:
    """Write `file`, the same bytes for the same numbers. Matplotlib's `savefig` would draw the figure twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).print_png(file, metadata={"Software": None})


def save(figure: Figure, file: Path) -> list[Path]:
    """Write `file` as PNG and SVG, the same bytes for the same numbers, and return both paths."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    paths = [file.with_suffix(suffix) for suffix in (".png", ".svg")]
    with rc_context({"svg.hashsalt": file.stem}):
        save_png(figure, paths[0])
        figure.set_layout_engine("none")  # it has its layout
        FigureCanvasSVG(figure).print_svg(paths[1], metadata={"Date": None})
    return paths
