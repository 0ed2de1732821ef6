"""The wiring of Admin's residual, and the forward pass that measures its initial weights."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ablate.config.errors import ConfigError, Problem
from ablate.distributed import ranks
from ablate.norms.placement import Site
from ablate.norms.residuals import Sublayer, add_branch

LEAST = 0.1
"""The smallest omega with which a training is begun."""
CUT = (
    "Admin's profile sets a weight of the residual to {least:.2g}, below {limit:g}: the input of the first layer has a "
    "small variance, so that the residual is cut and the model does not learn. Take norm.start=closed_form, or give "
    "the embedding unit variance: init.embedding_std=1"
)


class AdminResidual(nn.Module):
    """`N(omega * x + f(x))` with a learnable vector `omega`, [dim], with a given initial value; if it is None,
    `profile` measures it."""

    on_stream: ClassVar[tuple[str, ...]] = ("norm", "omega")

    def __init__(self, site: Site, omega: float | None) -> None:
        super().__init__()
        self.norm, self.drop, self.measured = site.norm(), site.drop(), omega is None
        self.omega = nn.Parameter(torch.full((site.dim,), 1.0 if omega is None else omega))

    def forward(self, x: Tensor, f: Sublayer, *args: Any) -> Tensor:
        return self.norm(add_branch(self.omega * x, self.drop, f(x, *args)))


@torch.no_grad()
def profile(model: nn.Module, inputs: Tensor) -> None:
    """Set the unset omegas of `model` from one forward pass without dropout and without an update.

    The omega of the i-th sublayer is the square root of the summed variances of the first sublayer's input and of the
    outputs of all earlier sublayers. The first omega is 1. Raises ConfigError if an omega is below `LEAST`: the model
    would be cut off from its input, and would not learn.
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
        if omegas and (least := min(omegas.values())) < LEAST:
            raise ConfigError([Problem("norm.start", CUT.format(least=least, limit=LEAST), "profile")])
        for residual, omega in omegas.items():  # once more: where weights are sharded, those above were a passing copy
            residual.omega.fill_(omega)
    finally:
        model.train(training)
        for buffer, before_it in buffers:  # the running averages of BatchNorm
            buffer.copy_(before_it)
        for handle in handles:
            handle.remove()
