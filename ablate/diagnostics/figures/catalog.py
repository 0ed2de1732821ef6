"""The figures of the papers on the layers of Pre-LN, Post-LN, Mix-LN and LayerNorm Scaling, by what they show: rows
of panels, in a registry."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ablate.config.errors import AblateError, did_you_mean
from ablate.config.registry import Catalogue
from ablate.diagnostics.figures.rows import (
    GRADIENTS,
    INITIAL_GRADIENTS,
    AngleMaps,
    Courses,
    DepthLines,
    JacobianMaps,
    LayerLines,
    RemovalBars,
    Row,
)
from ablate.diagnostics.kinds import PaperFigure, papers
from ablate.diagnostics.measures import BlockJacobian, Jacobian, Spectral, Variance


class LayerFigure:
    """A figure of the layers of several models. A subclass sets its `name`, its `title` and its `rows`, the uppermost
    first; the first sentence of its docstring is its description in `ablate list figures`."""

    name: ClassVar[str]
    title: ClassVar[str]
    rows: ClassVar[tuple[Row, ...]]


figures: Catalogue[type[LayerFigure]] = Catalogue("figure")
register = figures.register


def find_figure(name: str) -> tuple[type[LayerFigure], PaperFigure | None]:
    """Return the figure of that name, or of that number of a paper, such as mixln-3, and the description of the paper's
    figure, if it is one.
    Raises AblateError."""
    paper = papers.get(name)
    known = paper.figure if paper else name
    if known not in figures:
        names = [*figures, *papers]
        raise AblateError(f"unknown figure {name!r}. Accepted: {', '.join(names)}.{did_you_mean(name, names)}")
    return figures[known], paper


@register
class Removal(LayerFigure):
    """The performance drop without each layer of a model, above the angular distance between layers."""

    name = "removal"
    title = "Which layers contribute: performance drop and angular distance"
    rows = (RemovalBars(), AngleMaps())


@register
class Contribution(LayerFigure):
    """Angular distance, performance drop and gradient norm of each layer, a column for each model."""

    name = "contribution"
    title = "Which layers contribute: angular distance, performance drop, gradient norm"
    rows = (AngleMaps(), RemovalBars(), replace(GRADIENTS, apart=True))


@register
class Mixing(LayerFigure):
    """The changes by a placement: angular distance, performance drop, and the gradient norm of each layer before and
    after training, all models in one panel."""

    name = "mixing"
    title = "What the placement changes: angular distance, performance drop, gradient norm"
    rows = (AngleMaps(), RemovalBars(), INITIAL_GRADIENTS, GRADIENTS)


@register
class AngularDistance(LayerFigure):
    """The angular distance between layers, a map for each model."""

    name = "angular-distance"
    title = "How far the layers turn the hidden state: angular distance"
    rows = (AngleMaps(),)


@register
class InitialGradients(LayerFigure):
    """The gradient norm of each layer before training, and the performance drop of a trained model without the
    layer."""

    name = "initial-gradients"
    title = "Gradient norm at initialisation, and performance drop"
    rows = (INITIAL_GRADIENTS, RemovalBars())


@register
class VarianceCourse(LayerFigure):
    """The output variance of each layer over the updates, measured in training."""

    name = "variance-course"
    title = "Output variance of the layers during training"
    rows = (Courses(),)


@register
class LayerVariance(LayerFigure):
    """The output variance of each layer after training."""

    name = "variance"
    title = "Output variance of the layers"
    rows = (LayerLines(Variance, "After training (thin: each seed)"),)


@register
class Identity(LayerFigure):
    """How near each layer is to the identity: heat maps of its Jacobian for one token, and the share of its diagonal in
    them."""

    name = "identity"
    title = "How near the layers are to the identity"
    rows = (
        JacobianMaps(),
        LayerLines(BlockJacobian, "Share of the diagonal in the sum of |J| (thin: each seed)", log=False),
    )


@register
class SpectralNorm(LayerFigure):
    """The spectral norm of the Jacobian from the input of each layer to the output of the last, over the layers and
    over the depth of the models, and its Frobenius norm."""

    name = "spectral"
    title = "The Jacobian from the input of a layer to the output of the last"
    rows = (
        LayerLines(Spectral, "Spectral norm, over the layers (thin: each seed)"),
        DepthLines(Spectral, "Spectral norm, over the depth (dots: each seed)"),
        LayerLines(Jacobian, "Frobenius norm, over the layers (thin: each seed)"),
        DepthLines(Jacobian, "Frobenius norm, over the depth (dots: each seed)"),
    )
