"""Admin: Post-LN whose residual weights are set from one pass through the untrained model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ablate.distributed import ranks
from ablate.norms.placement import Placement, Site, placements
from ablate.norms.residuals import Sublayer


class AdminResidual(nn.Module):
    """`N(omega * x + f(x))` with a learnable vector `omega`, [dim], that starts at a given value; where that is None,
    `profile` measures it."""

    def __init__(self, site: Site, omega: float | None) -> None:
        super().__init__()
        self.norm, self.drop, self.measured = site.norm(), site.drop(), omega is None
        self.omega = nn.Parameter(torch.full((site.dim,), 1.0 if omega is None else omega))

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        return self.norm(self.omega * x + self.drop(f(x, *args)))


@torch.no_grad()
def profile(model: nn.Module, inputs: Tensor) -> None:
    """Set the omegas that are to be measured in `model` from one pass, in which it neither learns nor drops anything.

    The omega of the i-th is the square root of the variance of what has been added up before it: of the input of the
    first, and of every earlier sublayer's output. The first one's is 1.
    """
    residuals = [module for module in model.modules() if isinstance(module, AdminResidual)]
    variance: Tensor | None = None
    stream = inputs
    omegas: dict[AdminResidual, float] = {}

    def before(residual: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal stream
        assert isinstance(residual, AdminResidual)
        stream = args[0]
        if residual.measured:
            omegas[residual] = 1.0 if variance is None else variance.sqrt().item()
            residual.omega.fill_(omegas[residual])

    def inside(residual: AdminResidual, total: Tensor) -> None:
        nonlocal variance
        branch = (total - residual.omega * stream).double()
        earlier = ranks.variance(stream) if variance is None else variance
        variance = earlier + ranks.variance(branch)

    handles = [residual.register_forward_pre_hook(before) for residual in residuals]
    for residual in residuals:
        handles.append(residual.norm.register_forward_pre_hook(lambda _, args, r=residual: inside(r, args[0])))
    training, buffers = model.training, [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train()  # with the statistics that training will see
    for module in model.modules():
        if "drop" in type(module).__name__.lower():
            module.eval()
    try:
        model(inputs)
        for residual, omega in omegas.items():  # once more: where weights are sharded, those above were a passing copy
            residual.omega.fill_(omega)
    finally:
        model.train(training)
        for buffer, before_it in buffers:  # the running averages of BatchNorm
            buffer.copy_(before_it)
        for handle in handles:
            handle.remove()


@placements.register
class Admin(Placement):
    """Admin: Post-LN whose residual is weighted by a learnable vector `omega`, which starts so that no sublayer's
    output outweighs all that was added before it. `omega` of the i-th sublayer is the square root of the summed
    variances of the stack's input and of the sublayers before it, measured on one batch before training."""

    kind: Literal["admin"] = "admin"
    start: Literal["profile", "closed_form"] = "profile"
    """Where omega starts. profile: as measured; closed_form: sqrt((2L + 1) / ln(2L + 1) - 1) for every sublayer, as in
    the authors' later package."""
    rule = "N(omega * x + f(x)), omega learnable [d]"
    source = "Liu et al. 2020, arXiv 2004.08249"
    diagram = "x ─┬─ f ─────── + ─ N ─►\n   └─ * omega ──┘"
    initialisation = (
        "that of init; omega_1 = 1, omega_i^2 = Var[x_0] + Var[f_1] + ... + Var[f_(i-1)], measured on the first batch"
    )
    caveats = (
        "Measured once, before the first update; a continued run has it in its checkpoint. With a small "
        "embedding, as init: normal has it, all omegas but the first start small. In a mix the sum begins at "
        "the first layer of Admin and counts the layers of Admin alone."
    )

    def residual(self, site: Site) -> nn.Module:
        sublayers = 2 * site.depth
        closed = math.sqrt((sublayers + 1) / math.log(sublayers + 1) - 1)
        return AdminResidual(site, closed if self.start == "closed_form" else None)

    def prepare(self, model: nn.Module, first_inputs: Callable[[], Tensor]) -> None:
        profile(model, first_inputs())
