"""The properties of a library's model, read from the model itself without its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ablate.config.errors import Problem
from ablate.models.libraries.families import FAMILIES, Family
from ablate.models.libraries.wiring import count_norms, find_norm, is_matrix, iterate_norms, list_unknown, list_widths
from ablate.norms import Initialization, Placement, Stack
from ablate.norms.placement import find_problems


@dataclass(frozen=True)
class Blueprint:
    """A model on the meta device, as the library builds it, and where its parts are."""

    model: nn.Module
    stack: Stack
    blocks: str
    """The container of its layers."""
    output: str
    """The name of the weight of the output layer in a state dict of ours."""
    family: Family | None
    """None: where its sublayers are is not known."""
    tied: Mapping[str, str]
    """Tied weights in a state dict of ours: name -> name of the weight that it shares."""

    @property
    def layer_parameters(self) -> int:
        """The weights in the matrices of the layers."""
        layers: Any = self.model.get_submodule(self.blocks)
        return sum(module.weight.numel() for module in layers.modules() if is_matrix(module))

    @property
    def own_norms(self) -> tuple[int, int]:
        """The norms in each layer, and outside of the layers, that it has with every placement."""
        if self.family is None:
            return 0, 0
        layers = self.model.get_submodule(self.blocks)
        first = next(iter(layers.children()))
        inside = sum(count_norms(first.get_submodule(name)) for name in (*self.family.attn, *self.family.mlp))
        outside = count_norms(self.model) - count_norms(layers)
        return inside, outside - bool(find_norm(self.model, self.family.final_norm))

    def validate_choices(self, title: str, norm: Placement, init: Initialization) -> list[Problem]:
        """Return the problems with a placement, norm layers and an initialisation for the model `title`."""
        problems = []
        cls, here = type(self.model).__name__, "as the library made it (norm=library)"
        if norm.of_library:
            if not norm.final_norm:
                text = f"placement library leaves the norm before the head {here}. Name a placement to take it away"
                problems.append(Problem("norm.final_norm", text, False))
            if norm.has_qk_norm:
                text = f"placement library leaves queries and keys {here}. Name a placement to norm them"
                problems.append(Problem("norm.qk", text, norm.qk.kind))
        elif self.family is None:
            families = sorted({model for model, _ in FAMILIES})
            text = (
                f"the sublayers of {title} ({cls}) are unknown, so placement {norm.kind} cannot be built in it. "
                f"Accepted with it: library. Models of these classes take others: {', '.join(families)}"
            )
            problems.append(Problem("norm.kind", text, norm.kind))
        elif any(norm.at(index, self.stack.depth).of_library for index in range(self.stack.depth)):
            text = (
                f"library is for all layers or none: name a placement instead, which for {title} is {self.family.own}"
            )
            problems.append(Problem("norm.kind", text, norm.kind))
        if norm.qk.of_library:
            problems.append(
                Problem("norm.qk", "library is no norm layer for queries and keys. Name one, or none", "library")
            )
        if not init.of_library and self.family is None:
            text = f"the roles of the matrices of {title} ({cls}) are unknown. Accepted with it: library"
            problems.append(Problem("init.kind", text, init.kind))
        return problems if norm.layer.of_library else [*problems, *self._validate_exchange(title, norm)]

    def _validate_exchange(self, title: str, norm: Placement) -> list[Problem]:
        """Return the problems with exchanging the norms of the model for `norm.layer`."""
        layer, widths = norm.layer, list_widths(self.model)
        if unknown := list_unknown(self.model):
            text = f"{title} has norms that cannot be exchanged: {', '.join(unknown)}. Accepted with it: library"
            return [Problem("norm.layer", text, layer.kind)]
        if not widths:
            return [Problem("norm.layer", f"{title} has no norm. Accepted with it: library", layer.kind)]
        return [problem.within("norm.layer") for problem in find_problems(layer, widths, self.stack.causal)]


def find_family(model: nn.Module) -> Family | None:
    """Return the family of a model; None if it is not known, or one of its layers is of another class."""
    for (cls, layer), family in FAMILIES.items():
        if type(model).__name__ == cls:
            layers = list(model.get_submodule(family.blocks).children())
            if layers and all(type(one).__name__ == layer and _is_whole(one, family) for one in layers):
                return family
    return None


def _is_whole(layer: nn.Module, family: Family) -> bool:
    """Return whether a layer has the matrices of `family`, and no more than its sublayers and norms beside them."""
    modules = {name for name, _ in layer.named_modules()}
    if not modules.issuperset(family.roles):
        return False
    known = [*family.attn, *family.mlp, *(name for name, _ in iterate_norms(layer))]
    return all(any(name.startswith(f"{module}.") for module in known) for name, _ in layer.named_parameters())
