"""Whether a parametrisation goes with the rest of an experiment."""

from __future__ import annotations

from ablate.config.errors import Problem
from ablate.models.config import ModelConfig, models
from ablate.norms import Initialization, Placement, initializations, placements
from ablate.parametrizations.parametrization import Parametrization, Scaled


def validate_parametrization(
    parametrization: Parametrization, model: ModelConfig, norm: Placement, init: Initialization
) -> list[Problem]:
    """Return the problems of a parametrisation with a model, a placement and an initialisation; `path` is that in the
    experiment."""
    if not isinstance(parametrization, Scaled):
        return []
    kind, base, stack = parametrization.kind, parametrization.base, model.stack()
    if not model.scales:
        accepted = ", ".join(name for name in models if models[name].scales)
        text = f"{kind} needs to know the role of each matrix, and model {model.title} does not say it: {accepted} do"
        return [Problem("parametrization.kind", text, kind)]
    problems = []
    if base.hidden > stack.hidden:
        text = f"is wider than the model, whose model.hidden is {stack.hidden}: a base is the smallest size"
        problems.append(Problem("parametrization.base.hidden", text, base.hidden))
    if parametrization.by_depth and base.layers > stack.depth:
        text = f"is deeper than the model, whose model.layers is {stack.depth}: a base is the smallest size"
        problems.append(Problem("parametrization.base.layers", text, base.layers))
    if model.tied_weights():
        text = (
            f"the head has a multiplier with {kind}, which its matrix cannot hold where the embedding is the same one"
        )
        problems.append(Problem("model.tie_embeddings", text, True))
    if init.by_width or init.of_library:
        fitting = [name for name in initializations if _fits(initializations[name], parametrization)]
        text = f"sets the initial weights by the width itself, as {kind} does. Accepted with it: {', '.join(fitting)}"
        problems.append(Problem("init.kind", text, init.kind))
    elif parametrization.by_depth and init.by_depth:
        fitting = [name for name in initializations if _fits(initializations[name], parametrization)]
        text = f"scales the initial weights by the depth itself. Accepted with {kind}: {', '.join(fitting)}"
        problems.append(Problem("init.kind", text, init.kind))
    layers = [norm.at(index, stack.depth) for index in range(stack.depth)]
    if parametrization.by_depth and (placed := next((one for one in layers if one.scales_by_depth()), None)):
        fitting = [name for name in placements if not placements.parse(name).scales_by_depth()]
        text = (
            f"{placed.kind} scales residual or initial weights by the number of layers itself, as {kind} does. "
            f"Accepted with it: {', '.join(fitting)}; or take mup, which scales by the width alone"
        )
        problems.append(Problem("norm.kind", text, norm.kind))
    return problems


def _fits(init: type[Initialization], parametrization: Parametrization) -> bool:
    return not (init.by_width or init.of_library or (parametrization.by_depth and init.by_depth))
