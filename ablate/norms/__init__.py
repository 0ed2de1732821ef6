"""The norm registry that both model families share: norm layers, placements and initialisations."""

from ablate.norms.init import Initialization, Projection, initializations, initialize
from ablate.norms.layers import NormLayer, norm_layers
from ablate.norms.placements import Placement, Site, placements

__all__ = [
    "Initialization",
    "NormLayer",
    "Placement",
    "Projection",
    "Site",
    "initializations",
    "initialize",
    "norm_layers",
    "placements",
]
