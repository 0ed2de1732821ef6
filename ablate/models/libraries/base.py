"""A model of a library as a model of ours: its parts, matrices and norms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ablate.models.base import Model
from ablate.models.by_name import ByName
from ablate.models.libraries.blueprint import Blueprint
from ablate.models.libraries.wiring import exchange, find_norm, list_projections, rewire, split_projection
from ablate.norms import Initialization, Placement, Projection, initialize


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
            exchange(net, norm.layer)
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
