"""Admin: Post-LN with residual weights that are set from one forward pass of the untrained model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from ablate.config.lazy import postpone_imports
from ablate.norms.placement import Placement, Site, placements

if TYPE_CHECKING:
    from torch import Tensor, nn

with postpone_imports():
    from ablate.norms import admin_residual


@placements.register
class Admin(Placement):
    """Admin: Post-LN whose residual is weighted by a learnable vector `omega`, initialised so that no sublayer's output
    dominates the sum of the outputs before it."""

    kind: Literal["admin"] = "admin"
    start: Literal["closed_form", "profile"] = "closed_form"
    """Initial value of omega. closed_form: sqrt((2L + 1) / ln(2L + 1) - 1) for every sublayer, as in the authors' later
    package. profile, as in the paper: 1 for the first sublayer, then the square root of the summed variances of the
    stack's input and of the sublayers before it, measured on one batch before training. It assumes an input of unit
    variance: on a smaller embedding it cuts the residual, and below a tenth it is refused."""
    ends_with = "norm"
    rule = "N(omega * x + f(x)), omega learnable [d]"
    source = "Liu et al. 2020, arXiv 2004.08249"
    diagram = "x ─┬─ f ─────── + ─ N ─►\n   └─ * omega ──┘"
    initialisation = (
        "set by `init`; omega = sqrt((2L + 1) / ln(2L + 1) - 1); with start: profile omega_1 = 1 and "
        "omega_i^2 = Var[x_0] + Var[f_1] + ... + Var[f_(i-1)], measured on the first batch"
    )
    caveats = (
        "A profile is measured once, before the first update; a resumed run loads it from its checkpoint. It needs an "
        "input of unit variance (init.embedding_std: 1). In a mix its sum starts at the first Admin layer and includes "
        "Admin layers only."
    )

    def residual(self, site: Site) -> nn.Module:
        sublayers = 2 * site.depth
        closed = math.sqrt((sublayers + 1) / math.log(sublayers + 1) - 1)
        return admin_residual.AdminResidual(site, closed if self.start == "closed_form" else None)

    def scales_by_depth(self) -> bool:
        return True

    def prepare(self, model: nn.Module, first_inputs: Callable[[], Tensor]) -> None:
        admin_residual.profile(model, first_inputs())
