"""The norm registry that both model families share: norm layers, placements and initialisations."""

from ablate.norms import mix  # noqa: F401 - registers the placements of all layers first, then its own

# isort: split
from ablate.norms import admin, modifiers, ngpt, streams  # noqa: F401
from ablate.norms.init import GATES, Initialization, Projection, initializations, initialize
from ablate.norms.layers import NormLayer, norm_layers
from ablate.norms.placement import ASKS, Placement, Site, Stack, placements

__all__ = [
    "ASKS",
    "GATES",
    "Initialization",
    "NormLayer",
    "Placement",
    "Projection",
    "Site",
    "Stack",
    "initializations",
    "initialize",
    "norm_layers",
    "placements",
]
