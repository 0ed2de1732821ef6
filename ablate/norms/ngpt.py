"""nGPT: hidden states, weights, queries and keys of length 1, with learned factors in the place of norms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ablate.config.lazy import postpone_imports
from ablate.norms.placement import Placement, Site, placements

if TYPE_CHECKING:
    from torch import nn

with postpone_imports():
    from ablate.norms import ngpt_modules


@placements.register
class NGPT(Placement):
    """nGPT: the hidden state is a point on the unit sphere that each sublayer moves a little towards its own output.
    There are no norms: `norm.layer` stays the default, which is not built, and `norm.final_norm` changes nothing."""

    kind: Literal["ngpt"] = "ngpt"
    rate_start: float = Field(0.05, gt=0)
    """Start of the learned rates a by which each feature moves towards the sublayer's output."""
    rule = "u(h + |a| (u(f(x)) - h)), h = u(x), u(x) = x / |x|, a learned [d]"
    source = "Loshchilov et al. 2024, arXiv 2410.01131, and its code"
    diagram = "x ─ u ─┬─ f ─ u ─ * |a| ─ + ─ u ─►\n       └─ * (1 - |a|) ────┘"
    initialisation = (
        "set by `init`, then vectors of length 1 (rows; columns of o and down), whatever init.std is; a 0.05, s 1. "
        "A factor is a stored number times a constant, so that Adam moves it by this times the learning rate: 0.05 "
        "sqrt(d) for a, sqrt(d) for queries, keys and logits, 1 in the MLP"
    )
    caveats = (
        "For LLaMA with an untied head. All s are learned, by feature. Attention: s u(q), s u(k) after the rotation, "
        "as in NVIDIA's code (OLMo-core scales before it), softmax scale sqrt(k); MLP: s sqrt(d) on gate and up; "
        "logits: s. Weights have length 1 again after each update: weight decay shrinks only what is then stretched, "
        "and acts as a slightly larger learning rate. The paper trains without decay and without warm-up. In "
        "bf16-true lengths are 1 only up to rounding, and an average of weights (trainer.ema_decay) has shorter "
        "ones."
    )
    on_sphere = True

    def residual(self, site: Site) -> nn.Module:
        return ngpt_modules.SphereResidual(site, self.rate_start)

    def after_update(self, model: nn.Module, updates: int) -> None:
        ngpt_modules.normalise_weights(model)
