"""Modifiers of other placements: a gate behind each residual sum, and branches that grow with the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_serializer, model_validator

from ablate.config.errors import Problem
from ablate.config.lazy import postpone_imports
from ablate.norms.mix import check_only_own, dump_own_fields
from ablate.norms.placement import Placement, Site, Stack, placements
from ablate.norms.placements import Pre

if TYPE_CHECKING:
    from torch import Tensor, nn

with postpone_imports():
    from ablate.norms import gates


class Modifier(Placement):
    """A placement that changes the wiring of another one, `base`, and is that one in all else."""

    base: Annotated[Placement, placements] = Pre()
    """The placement that is modified. Set `layer` and `final_norm` on `norm` itself."""

    @model_validator(mode="after")
    def _check(self) -> Modifier:
        check_only_own(base=self.base)
        if any(type(one) is type(self) for one in self.base.list_parts()):
            raise ValueError(f"{self.kind} twice: its base has it already")
        return self

    @field_serializer("base")
    def _fields(self, placement: Placement) -> dict[str, Any]:
        return dump_own_fields(placement)

    def list_parts(self) -> list[Placement]:
        return [self, *self.base.list_parts()]

    def at(self, index: int, depth: int) -> Placement:
        return self.model_copy(update={"base": self.base.at(index, depth)})

    carrier = property(attrgetter("base.carrier"))
    embedding_norm = property(attrgetter("base.embedding_norm"))
    inner_norm = property(attrgetter("base.inner_norm"))
    qkv_norm = property(attrgetter("base.qkv_norm"))
    of_library = property(attrgetter("base.of_library"))
    on_summed_inputs = property(attrgetter("base.on_summed_inputs"))
    on_sphere = property(attrgetter("base.on_sphere"))
    starts_gains = property(attrgetter("base.starts_gains"))
    spares_layers = property(attrgetter("base.spares_layers"))
    closing_norms = property(attrgetter("base.closing_norms"))

    def _list_own_asks(self, depth: int) -> dict[str, bool]:
        return self.base._list_own_asks(depth)

    def open(self, site: Site) -> nn.Module | None:
        return self.base.open(site)

    def close(self, site: Site) -> nn.Module | None:
        return self.base.close(site)

    def show(self, state: Any) -> Tensor:
        return self.base.show(state)

    def streams(self, state: Any) -> Tensor:
        return self.base.streams(state)

    def after_update(self, model: nn.Module, updates: int) -> None:
        self.base.after_update(model, updates)

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        return self.base.wire(site)

    def wire_attn(self, site: Site) -> nn.Module:
        return self.base.wire_attn(site)

    def gains(self, depth: int) -> dict[str, float]:
        return self.base.gains(depth)

    def scales_by_depth(self) -> bool:
        return self.base.scales_by_depth()

    def prepare(self, model: nn.Module, first_inputs: Callable[[], Tensor]) -> None:
        self.base.prepare(model, first_inputs)

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        return [problem.within("base") for problem in self.base.validate(stack)]


@placements.register
class GPAS(Modifier):
    """GPAS: each layer scales its residual stream by a learned gate, through which the gradient passes as if it
    were not there. It begins as its base."""

    kind: Literal["gpas"] = "gpas"
    rule = "G(x + f(N(x))), or N(G(x) + f(x)); G(s) = s - silu(g) sg(s), g a learned number of the layer"
    source = "GPAS 2025, arXiv 2506.22049"
    diagram = "x ─┬─ N ─ f ─ + ─ G ─►\n   └──────────┘"
    initialisation = "that of its base; g = 0, which changes nothing"
    caveats = (
        "Its gradients are no derivatives of its outputs. Without weight decay on g, as all vectors. Its authors clip "
        "the gradient of g to 0.01 at 7B parameters, and of Sandwich-LN at 1B."
    )

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        build, gate = self._find_wiring(site), gates.Gate()
        attn, mlp = self.base.wire(site)
        return build(attn, gate, True), build(mlp, gate, False)

    def wire_attn(self, site: Site) -> nn.Module:
        return self._find_wiring(site)(self.base.wire_attn(site), gates.Gate(), True)

    def _find_wiring(self, site: Site) -> type[gates.GatedSum]:
        return gates.BY_END[self.base.at(site.index, site.depth).list_parts()[-1].ends_with]

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        layers = [self.base.at(index, stack.depth).list_parts()[-1] for index in range(stack.depth)]
        unfit = dict.fromkeys(one.kind for one in layers if not one.ends_with)
        fitting = ", ".join(name for name in placements if placements[name].ends_with)
        text = "gpas needs sublayers that end with one sum or its norm, and those of {} do not. Accepted: {}"
        problems = [Problem("base", text.format(kind, fitting), kind) for kind in unfit]
        return [*super().validate(stack), *problems]


SCHEDULES: dict[str, Callable[[float, int, int], float]] = {
    "linear": lambda t, layer, depth: t / layer,
    "sqrt": lambda t, layer, depth: (t / layer) ** 0.5,
    "square": lambda t, layer, depth: (t / layer) ** 2,
    "equal": lambda t, layer, depth: t / depth,
    "reverse": lambda t, layer, depth: t / (depth - layer + 1),
}
"""Name -> the factor of a layer, counted from 1, after `t` times `updates` updates, before it is cut at 1."""


@placements.register
class ProRes(Modifier):
    """ProRes: the branches of layer l are multiplied by a factor that grows from 0 to 1 in the first l T updates, so
    that shallow layers learn first. Nothing of it is learned, and it ends as its base."""

    kind: Literal["prores"] = "prores"
    updates: int = Field(1000, gt=0)
    """T, the updates in which the first layer's factor grows to 1. All are 1 after L T updates."""
    schedule: Literal["linear", "sqrt", "square", "equal", "reverse"] = "linear"
    """How it grows: linear, or the root or square of that; equal: all layers as the last; reverse: deep layers
    first."""
    rule = "x + a f(...) in any placement, a = min(t / (T l), 1) after t updates"
    source = "ProRes 2026, arXiv 2603.05369"
    diagram = "x ─┬─ N ─ f ─ * a(l, t) ─ + ─►\n   └──────────────────────┘"
    initialisation = "that of its base; the branches are 0 before the first update"
    caveats = (
        "The branches are 0 at first, so that the first update changes embedding, head, and norms outside of them "
        "alone. A run that ends before L T updates ends with smaller branches in its deep layers. Where a trained "
        "model is trained on, its factors stay until those of the new run have grown beyond them."
    )

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        return self.base.wire(self._slow(site))

    def wire_attn(self, site: Site) -> nn.Module:
        return self.base.wire_attn(self._slow(site))

    def _slow(self, site: Site) -> Site:
        find = partial(self.find_factor, layer=site.index + 1, depth=site.depth)
        return replace(site, drop=lambda: gates.Growing(site.drop(), find))

    def find_factor(self, updates: int, layer: int, depth: int) -> float:
        """Return the factor of the branches of a layer, counted from 1, after so many updates."""
        return min(SCHEDULES[self.schedule](updates / self.updates, layer, depth), 1.0)

    def caution(self, depth: int, updates: int) -> str:
        least = min((self.find_factor(updates, layer, depth) for layer in range(1, depth + 1)), default=1.0)
        if least == 1:
            return ""
        whole = f"all are whole after {self.updates * depth:,} (its setting updates, times the layers)"
        return f"prores: the run ends after {updates:,} updates with a branch at {least:.2g} of its size; {whole}."

    def after_update(self, model: nn.Module, updates: int) -> None:
        super().after_update(model, updates)
        for module in model.modules():
            if isinstance(module, gates.Growing):
                module.factor.clamp_(min=module.find(updates))  # one of a trained model that is trained on stays
