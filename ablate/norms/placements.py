"""The placements that are the same for all layers, each with its formula and its source. `placement.py` defines the
terms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ablate.config.errors import Problem
from ablate.config.lazy import postpone_imports
from ablate.norms.placement import Placement, Site, Stack, find_problems, placements

if TYPE_CHECKING:
    from torch import nn

with postpone_imports():
    from ablate.norms import residuals


@placements.register
class Pre(Placement):
    """Pre-LN: the norm on each sublayer's input; the residual stream itself is not normalised."""

    kind: Literal["pre"] = "pre"
    ends_with = "sum"
    rule = "x + f(N(x))"
    source = "Xiong et al. 2020, arXiv 2002.04745"
    diagram = "x ─┬─ N ─ f ─ + ─►\n   └──────────┘"
    caveats = "The variance of the stream grows with depth, so deep layers change it little."

    def residual(self, site: Site) -> nn.Module:
        return residuals.PreResidual(site)


placements.preset("group", "pre", layer={"kind": "groupnorm"})


@placements.register
class Post(Placement):
    """Post-LN: the norm after each residual addition."""

    kind: Literal["post"] = "post"
    ends_with = "norm"
    rule = "N(x + f(x))"
    source = "Vaswani et al. 2017, arXiv 1706.03762"
    diagram = "x ─┬─ f ─ + ─ N ─►\n   └──────┘"
    caveats = (
        "Hard to train deep without a long warm-up. With the final norm on, the stack ends with two norms in a row."
    )

    def residual(self, site: Site) -> nn.Module:
        return residuals.PostResidual(site)


@placements.register
class DeepNorm(Placement):
    """DeepNorm: Post-LN with the residual scaled up by `alpha = (2L)^(1/4)`, and with DeepNorm's initialisation: Xavier
    normal, with gain `beta = (8L)^(-1/4)` for the value, output and MLP projections and 1 for query and key. The values
    are the paper's for a decoder-only model, which are also those for an encoder-only model. They replace `init` for
    these projections. Each of the two can be left out, to ask which of them does it: without both it is Post-LN."""

    kind: Literal["deepnorm"] = "deepnorm"
    scale_residual: bool = True
    """Whether the residual is multiplied by alpha. false: by 1, as in Post-LN."""
    scale_init: bool = True
    """Whether the projections have DeepNorm's initialisation. false: that of `init`."""
    published_code: bool = False
    """Whether to repeat a defect of the public code of Mix-LN and LayerNorm Scaling, to reproduce the baseline that
    these papers call DeepNorm, which it is not: alpha is that of 32 layers, 64^(1/4) = 2.83, whatever L is, and the
    sign of the gain's exponent is inverted, (8L)^(+1/4), so that it is above 1."""
    ends_with = "norm"
    rule = "N((2L)^(1/4) x + f(x))"
    source = "Wang et al. 2022, arXiv 2203.00555"
    diagram = "x ─┬─ f ─────────── + ─ N ─►\n   └─ * (2L)^(1/4) ─┘"
    initialisation = "Xavier normal, gain (8L)^(-1/4) for v, o, gate, up and down, 1 for q and k"
    caveats = (
        "The gain is below 1: a published baseline with gain (8L)^(+1/4) is not DeepNorm; published_code repeats it. "
        "The authors' code has no final norm: norm.final_norm=false."
    )

    def residual(self, site: Site) -> nn.Module:
        layers = 32 if self.published_code else site.depth
        return residuals.PostResidual(site, alpha=(2 * layers) ** 0.25 if self.scale_residual else 1.0)

    def gains(self, depth: int) -> dict[str, float]:
        exponent = 0.25 if self.published_code else -0.25
        return _xavier((8 * depth) ** exponent) if self.scale_init else {}

    def scales_by_depth(self) -> bool:
        return self.scale_residual or self.scale_init

    def validate(self, stack: Stack) -> list[Problem]:  # type: ignore[override]
        if not self.published_code or self.scale_residual or self.scale_init:
            return []
        return [Problem("published_code", "changes nothing where scale_residual and scale_init are both false", True)]


@placements.register
class MiniMax(Placement):
    """MiniMax-01's post-norm: DeepNorm's residual scaling with the norm moved to the sublayer's input, so that the
    embedding is normalised first and the final norm follows the last sublayer; without DeepNorm's initialisation."""

    kind: Literal["minimax"] = "minimax"
    scale_residual: bool = True
    """Whether the residual is multiplied by (2L)^(1/4). false: by 1, a Post-LN whose norms are moved."""
    scale_init: bool = False
    """Whether the projections have DeepNorm's initialisation, as MiniMax-01's have not."""
    rule = "(2L)^(1/4) h + f(h), h = N(x)"
    source = "MiniMax 2025, arXiv 2501.08313"
    diagram = "x ─ N ─┬─ f ─────────── + ─►\n       └─ * (2L)^(1/4) ─┘"
    caveats = (
        "With the final norm it computes DeepNorm's forward pass on a normalised embedding; without it the last norm "
        "is missing."
    )

    def residual(self, site: Site) -> nn.Module:
        return residuals.InputPostResidual(site, alpha=(2 * site.depth) ** 0.25 if self.scale_residual else 1.0)

    def gains(self, depth: int) -> dict[str, float]:
        return _xavier((8 * depth) ** -0.25) if self.scale_init else {}

    def scales_by_depth(self) -> bool:
        return self.scale_residual or self.scale_init


@placements.register
class LayerNormScaling(Placement):
    """LayerNorm Scaling (LNS): Pre-LN with the output of layer l's norms scaled by `1 / sqrt(l)`, l from 1, in both
    sublayers and not on the final norm. Its authors advise against combining it with `init: scaled`."""

    kind: Literal["lns"] = "lns"
    position: Literal["after_norm", "before_norm", "after_sublayer", "after_residual"] = "after_norm"
    """Where the factor s = 1 / sqrt(l) stands. after_norm: x + f(s N(x)), LNS; the others are the paper's ablation of
    it. before_norm: x + f(N(s x)), which is Pre-LN but for the norm's eps; after_sublayer: x + s f(N(x));
    after_residual: s (x + f(N(x)))."""
    sublayers: Literal["both", "attn", "mlp"] = "both"
    """The sublayers that have the factor; the other one is Pre-LN."""
    ends_with = "sum"
    rule = "x + f(N(x) / sqrt(l))"
    source = "Sun et al. 2025, arXiv 2502.05795"
    diagram = "x ─┬─ N ─ * 1/sqrt(l) ─ f ─ + ─►\n   └────────────────────────┘"
    caveats = "Its authors advise against combining it with a scaled initialisation."

    def residual(self, site: Site) -> nn.Module:
        wiring = {
            "after_norm": residuals.PreResidual,
            "before_norm": residuals.InputScaledResidual,
            "after_sublayer": residuals.BranchScaledResidual,
            "after_residual": residuals.SumScaledResidual,
        }
        return wiring[self.position](site, scale=(site.index + 1) ** -0.5)

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        attn, mlp = (
            self.residual(own) if self.sublayers in ("both", own.place) else residuals.PreResidual(own)
            for own in (site, site.mlp)
        )
        return attn, mlp


@placements.register
class Sandwich(Placement):
    """Sandwich-LN: a norm on each sublayer's input and one on its output, four in a layer."""

    kind: Literal["sandwich"] = "sandwich"
    ends_with = "sum"
    rule = "x + N2(f(N1(x)))"
    source = "Ding et al. 2021, arXiv 2105.13290"
    diagram = "x ─┬─ N1 ─ f ─ N2 ─ + ─►\n   └────────────────┘"

    def residual(self, site: Site) -> nn.Module:
        return residuals.SandwichResidual(site)


placements.preset(
    "gemma3",
    "sandwich",
    note=(
        "The norms of Gemma 3 (Gemma Team 2025, arXiv 2503.19786). It is not Gemma 3, which also has GELU in its "
        "MLP, an embedding scaled by sqrt(d), attention within a sliding window in five of six layers, with a "
        "rotary base of their own, and a fixed scale of the queries."
    ),
    layer={"kind": "rmsnorm1p"},
    qk={"kind": "rmsnorm1p"},
)


@placements.register
class Peri(Sandwich):
    """Peri-LN: norms on the input and on the output of each sublayer, and on the embedding and before the head."""

    kind: Literal["peri"] = "peri"  # type: ignore[assignment]
    rule = "x + N2(f(N1(x))), with a norm on the embedding"
    source = "Kim et al. 2025, arXiv 2502.02732"
    diagram = "embedding ─ N ─►  x ─┬─ N1 ─ f ─ N2 ─ + ─►\n                     └────────────────┘"
    caveats = (
        "The final norm is a part of Peri-LN: keep norm.final_norm on. In a mix the embedding is normalised only if "
        "Peri-LN is the first layer's placement. Without the norm on the embedding it is `sandwich`."
    )
    embedding_norm = True


@placements.register
class DepthScaledSandwich(Sandwich):
    """Depth-scaled Sandwich-LN: the gains of the norms on the outputs start small, by the depth."""

    kind: Literal["sandwich_scaled"] = "sandwich_scaled"  # type: ignore[assignment]
    attn_start: float = Field(0.283, gt=0)
    """Start of the gains behind attention, times 1 / sqrt(L)."""
    mlp_start: float = Field(0.432, gt=0)
    """The same behind the MLP."""
    rule = "x + N2(f(N1(x))), gains of N2 from 0.283 / sqrt(L) (attention), 0.432 / sqrt(L) (MLP)"
    source = "Pangu Ultra 2025, arXiv 2504.07866"
    initialisation = "set by `init`; gains of N2 by the depth"
    caveats = (
        "Its authors also draw all projections with std sqrt(1 / (2 d L)) (`init.std`) and the embedding with 0.5 "
        "(`init.embedding_std`), which are not set with it."
    )
    starts_gains = True

    def residual(self, site: Site) -> nn.Module:
        start = self.attn_start if site.place == "attn" else self.mlp_start
        return residuals.SandwichResidual(site, start * site.depth**-0.5)

    def scales_by_depth(self) -> bool:
        return True


@placements.register
class Keel(Placement):
    """KEEL: Post-LN whose residual is multiplied by the number of sublayers, with a norm on each sublayer's input."""

    kind: Literal["keel"] = "keel"
    exempt_first: bool = True
    """Whether the first layer is exempt: its attention is Pre-LN, its MLP N2(x + f(N1(x))), both without the factor."""
    rule = "N2(2L x + f(N1(x)))"
    source = "KEEL 2026, arXiv 2601.19895, equations 16 to 19"
    diagram = "x ─┬─ N1 ─ f ─ + ─ N2 ─►\n   └─── * 2L ──┘"
    caveats = (
        "With the final norm on, the stack ends with two norms in a row. The exemption of the first layer is that of a "
        "public benchmark; the paper's lines on it were not read."
    )

    def residual(self, site: Site) -> nn.Module:
        if self.exempt_first and site.sublayer == 0:
            return residuals.PreResidual(site)
        is_exempt = self.exempt_first and site.index == 0
        return residuals.KeelResidual(site, 1.0 if is_exempt else site.sublayers * site.depth)

    def scales_by_depth(self) -> bool:
        return True


@placements.register
class OLMo2(Placement):
    """OLMo 2's placement: the norm on each sublayer's output, inside the residual."""

    kind: Literal["olmo2"] = "olmo2"
    ends_with = "sum"
    rule = "x + N(f(x))"
    source = "OLMo 2 2025, arXiv 2501.00656"
    diagram = "x ─┬─ f ─ N ─ + ─►\n   └──────────┘"
    caveats = "OLMo 2 also normalises queries and keys, which is not a part of this placement."

    def residual(self, site: Site) -> nn.Module:
        return residuals.OutputNormResidual(site)


@placements.register
class LayerScale(Placement):
    """LayerScale: Pre-LN with each sublayer's output scaled by a learnable vector that starts small."""

    kind: Literal["layerscale"] = "layerscale"
    initial: float | None = None
    """Initial value of the vectors' elements. None: 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond."""
    ends_with = "sum"
    rule = "x + s * f(N(x)), s learnable [d]"
    source = "Touvron et al. 2021, arXiv 2103.17239"
    diagram = "x ─┬─ N ─ f ─ * s ─ + ─►\n   └────────────────┘"
    initialisation = "set by `init`; the vectors at 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond"

    def residual(self, site: Site) -> nn.Module:
        by_depth = 0.1 if site.depth <= 18 else 1e-5 if site.depth <= 24 else 1e-6
        return residuals.ScaledResidual(site, site.dim, by_depth if self.initial is None else self.initial)

    def scales_by_depth(self) -> bool:
        return self.initial is None


@placements.register
class ResidualScalar(Placement):
    """Pre-LN with each sublayer's output scaled by one learnable number that starts near 0."""

    kind: Literal["residual_scalar"] = "residual_scalar"
    initial: float | None = 1e-3
    """Initial value of the learnable numbers. None: 1 / sqrt(L), as in SkipInit."""
    ends_with = "sum"
    rule = "x + s f(N(x)), s a learnable number"
    source = "after Bachlechner et al. 2020, arXiv 2003.04887"
    diagram = "x ─┬─ N ─ f ─ * s ─ + ─►\n   └────────────────┘"
    initialisation = "set by `init`; the numbers at 1e-3"
    caveats = (
        "ReZero itself starts at 0, has no norm (norm.initial=0 norm.layer=none) and shares one number "
        "between attention and MLP."
    )

    def residual(self, site: Site) -> nn.Module:
        return residuals.ScaledResidual(site, 1, site.depth**-0.5 if self.initial is None else self.initial)

    def scales_by_depth(self) -> bool:
        return self.initial is None


placements.preset(
    "skipinit",
    "residual_scalar",
    note=(
        "SkipInit (De and Smith 2020, arXiv 2002.10444) on Pre-LN, as the paper of LNS compares it: its numbers start "
        "at 1 / sqrt(L). SkipInit itself has no norm (norm.layer=none), and counts residual branches, two in a layer."
    ),
    initial=None,
)


@placements.register
class SubLN(Pre):
    """Sub-LN: Pre-LN with a further norm before the output projections of attention and MLP, and with Sub-LN's
    initialisation: Xavier normal, with gain `sqrt(ln 2L)` for the value, output and MLP projections and 1 for query and
    key, instead of `init`."""

    kind: Literal["subln"] = "subln"  # type: ignore[assignment]
    rule = "x + W_out N2(g(N1(x))), f = W_out g"
    source = "Wang et al. 2022, arXiv 2210.06423"
    diagram = "x ─┬─ N1 ─ g ─ N2 ─ W_out ─ + ─►\n   └────────────────────────┘"
    initialisation = "Xavier normal, gain sqrt(ln 2L) for v, o, gate, up and down, 1 for q and k"
    caveats = ""
    inner_norm = True

    def gains(self, depth: int) -> dict[str, float]:
        return _xavier(math.log(2 * depth) ** 0.5)


@placements.register
class B2T(Placement):
    """B2T connection: Post-LN in which the layer's input is also added before its last norm, bypassing the other
    norms."""

    kind: Literal["b2t"] = "b2t"
    rule = "a = N1(x + attn(x)), then N2(x + a + mlp(a))"
    source = "Takase et al. 2022, arXiv 2206.00330"
    diagram = (
        "x ─┬─┬─ attn ─ + ─ N1 ─┬─ mlp ─ + ─ N2 ─►\n"
        "   │ └─────────┘       └────────┤\n"
        "   └────────────────────────────┘"
    )

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        return residuals.BottomResidual(site), residuals.TopResidual(site.mlp)

    def wire_attn(self, site: Site) -> nn.Module:
        """Return Post-LN: the only addition is then the attention's, which includes the layer's input already."""
        return residuals.PostResidual(site)


@placements.register
class Hybrid(Placement):
    """HybridNorm: norms on the queries, keys and values of each head and none on the attention's input; Post-LN for the
    MLP, with the norm at the MLP's input."""

    kind: Literal["hybrid"] = "hybrid"
    rule = "y = x + attn(x) with norms on q, k, v; then h + mlp(h), h = N(y)"
    source = "Zhuo et al. 2025, arXiv 2503.04598"
    diagram = "x ─┬─ attn (N on q, k, v) ─ + ─ N ─┬─ mlp ─ + ─►\n   └────────────────────────┘      └────────┘"
    caveats = "HybridNorm*, whose first layer is Pre-LN with norms on q, k and v, is first=pre."
    first: Literal["hybrid", "pre"] = "hybrid"
    """The first layer. pre: HybridNorm*, x + attn(N(x)) with norms on q, k, v, then y + mlp(N(y))."""
    qkv_norm = True

    def wire(self, site: Site) -> tuple[nn.Module, nn.Module]:
        if self.first == "pre" and site.index == 0:
            return residuals.PreResidual(site), residuals.PreResidual(site.mlp)
        return residuals.PlainResidual(site), residuals.InputPostResidual(site.mlp)


@placements.register
class LibraryPlacement(Placement):
    """The placement that a model of a library has of its own: its layers stay as the library built them. Their default,
    and for them alone (`model.kind: hf` and `timm`)."""

    kind: Literal["library"] = "library"
    listed = False
    of_library = True
    rule = "as the library computes it"
    initialisation = "set by `init`"


@placements.register
class SummedInputs(Placement):
    """Norms on the summed inputs W x of each layer, before bias and activation, as Zhang and Sennrich 2019 norm
    recurrent and convolutional models. The default of models without residual connections, and for them alone
    (`model.kind: gru` and `convpool`), whose docs say which sums are normed."""

    kind: Literal["summed_inputs"] = "summed_inputs"
    final_norm: bool = False
    """Whether one more norm is before the head."""
    listed = False
    on_summed_inputs = True
    rule = "phi(N(W x) + b)"
    source = "Zhang and Sennrich 2019, arXiv 1910.07467, equations 1 to 4"

    def validate_layer(self, stack: Stack) -> list[Problem]:
        widths = {*stack.summed_inputs, *([stack.hidden] if self.final_norm else [])}
        return [problem.within("layer") for problem in find_problems(self.layer, widths, stack.causal)]


def _xavier(gain: float) -> dict[str, float]:
    return {"q": 1.0, "k": 1.0, **dict.fromkeys(("v", "o", "gate", "up", "down"), gain)}
