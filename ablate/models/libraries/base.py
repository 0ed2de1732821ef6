"""A model of a library as a model of ours: its properties, read from the model itself without its weights, its
parts, matrices and norms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ablate.config.errors import Problem
from ablate.models.base import Model
from ablate.models.by_name import ByName
from ablate.models.libraries.families import FAMILIES, Family
from ablate.models.libraries.wiring import (
    count_norms,
    exchange,
    find_norm,
    is_matrix,
    iterate_norms,
    list_projections,
    list_unknown,
    list_widths,
    rewire,
    split_projection,
)
from ablate.norms import Initialization, Placement, Projection, Stack, initialize
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


class LibraryModel(Model):
    """A library's model `net`, with the norms of a placement. Its initial weights are the library's, or those of
    `init`, by the same function for every placement; norms of ours begin as in all models."""

    def __init__(
        self,
        config: ByName,
        net: nn.Module,
        norm: Placement,
        init: Initialization,
        embedding: Iterable[str],
        head: Iterable[str],
    ) -> None:
        super().__init__()
        plan: Blueprint = config.blueprint
        self.config, self.net, self.path, family = config, net, plan.blocks, plan.family
        self._matrices = list_projections(net, family, self.blocks())
        stem = {name for name, module in net.named_modules() if isinstance(module, nn.Embedding)}
        stem = {name for name in stem if not name.startswith(f"{self.path}.")} | set(embedding)
        self._embeddings = tuple(f"net.{name}" for name in sorted(stem))
        heads, final = tuple(head), find_norm(net, family.final_norm) if family else None
        if not norm.of_library:
            assert family is not None
            norm = rewire(net, family, norm, plan.stack)
            stem.add(family.embedding)
        if not norm.layer.of_library:
            exchange(net, norm.layer, final)
        self._parts = _name_parts(net, self.path, stem - {""}, heads, final)
        initialize(self.projections(), init, norm, plan.stack)

    def blocks(self) -> Any:
        return self.net.get_submodule(self.path)

    def parts(self) -> dict[str, tuple[str, ...]]:
        return dict(self._parts)

    def embeddings(self) -> tuple[str, ...]:
        return self._embeddings

    def projections(self) -> Iterator[Projection]:
        for role, layer, module in self._matrices:
            yield from split_projection(role, layer, module)


def _name_parts(
    net: nn.Module, path: str, stem: Iterable[str], heads: tuple[str, ...], final: str | None
) -> dict[str, tuple[str, ...]]:
    """Return the parts: a module with tensors of its own is one, so that all of a part is used equally often."""
    parts: dict[str, list[str]] = {}
    for name in _list_owners(net):
        if _is_below(name, [path]):
            part = f"layers{name[len(path) :]}"
        elif final is not None and _is_below(name, [final]):
            part = "final_norm"
        elif _is_below(name, heads):
            part = "head"
        else:
            part = f"{'embedding' if _is_below(name, stem) else 'rest'}.{name}"
        parts.setdefault(part, []).append(f"net.{name}")
    return {part: tuple(names) for part, names in parts.items()}


def _list_owners(net: nn.Module) -> Iterator[str]:
    """Yield the modules with tensors of their own, and of a module with others inside the tensors."""
    for name, module in net.named_modules():
        passing = module._non_persistent_buffers_set
        own = [*module.named_parameters(recurse=False)]
        own += [(key, tensor) for key, tensor in module.named_buffers(recurse=False) if key not in passing]
        if own and not list(module.children()):
            yield name
        elif own:
            yield from (f"{name}.{tensor}".lstrip(".") for tensor, _ in own)


def _is_below(name: str, prefixes: Iterable[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def count_outputs(module: Any) -> int:
    """Return the number of outputs of one use of a module's weight; 0 for a module without one."""
    weight: Tensor | None = getattr(module, "weight", None)
    if weight is None or isinstance(module, nn.Embedding):
        return 0
    if weight.ndim == 1:
        return weight.numel()
    return weight.shape[1] if type(module).__name__ == "Conv1D" else weight.shape[0]
