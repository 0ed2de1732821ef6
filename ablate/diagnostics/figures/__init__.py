"""Figures of the papers on the layers, each drawn by one command. Importing this package registers them."""

from ablate.diagnostics.figures.catalog import LayerFigure, figures, find_figure, register

__all__ = ["LayerFigure", "figures", "find_figure", "register"]
