"""The figures of a report, each described once: the page and the docs show it as SVG, MLflow as PNG."""

from __future__ import annotations

from ablate.plots.figure import Figure
from ablate.reports.bands import draw_bands
from ablate.reports.layer_seeds import compare_layers, draw_layers_over_seeds
from ablate.reports.search_figures import draw_curves, draw_parameters
from ablate.reports.verdict_figures import draw_effects, draw_failures, draw_grid, draw_verdict
from ablate.sweeps.comparison import compare_record, compare_record_effects
from ablate.sweeps.records import SweepRecord

MOST_ROWS = 40
"""Of a figure with a row for each arm."""


def draw_figures(record: SweepRecord) -> list[Figure]:
    """Return grid, effects, failures, verdict, bands, layers-seeds, learning_rate, alpha, one more for each other
    searched number, and curves: those that have data."""
    compared, effects = compare_record(record), compare_record_effects(record)
    layers = compare_layers(record)
    figures = [
        draw_grid(record, compared) if compared else None,
        draw_effects(record, effects) if effects else None,
        draw_failures(record, compared),
        draw_verdict(record, compared) if len(compared) <= MOST_ROWS else None,
        draw_bands(record, compared),
        draw_layers_over_seeds(record, layers) if layers else None,
        *draw_parameters(record, compared),
        draw_curves(record),
    ]
    return [figure for figure in figures if figure]
