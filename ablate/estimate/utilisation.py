"""What share of a GPU's peak a training is taken to reach, wherever time is told before it is measured."""

from __future__ import annotations

UTILISATION = ((20e6, 0.10), (100e6, 0.30), (500e6, 0.40), (float("inf"), 0.45))
"""(parameters of the layers, model FLOPs utilisation that is assumed below them). From published trainings on H100 and
A100 of 124M to 8B parameters, 33 to 48 %; below 100M small products leave a GPU waiting."""


def utilisation(parameters: int) -> float:
    """The model FLOPs utilisation that is assumed for layers of so many parameters."""
    return next(share for below, share in UTILISATION if parameters < below)
