"""Norm layers: the operation itself. Each is a configuration whose `build(dim)` returns a module of `layer_modules`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ablate.config.base import Kind
from ablate.config.bounds import MOST_WIDTH
from ablate.config.errors import Problem
from ablate.config.lazy import postpone_imports
from ablate.config.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

with postpone_imports():
    from ablate.norms import layer_modules


class NormLayer(Kind):
    """A norm layer: a normalisation of each token's features."""

    kind: str

    formula: ClassVar[str] = ""
    """The formula of its output in one line, for a token's features x."""
    source: ClassVar[str] = ""
    """The paper that the layer is from."""
    caveats: ClassVar[str] = ""
    """Caveats of a comparison with others."""
    of_library: ClassVar[bool] = False
    """Whether it keeps the norms that a library's model has built itself."""
    scales_embedding: ClassVar[bool] = False
    """Whether a learnable number, initially sqrt(d), multiplies the token embedding: needed by a layer that does not
    re-scale."""
    per_feature: ClassVar[bool] = False
    """Whether each feature is normed without the other features of its token."""
    no_gain: ClassVar[float | None] = 0.0
    """The value of its parameter `weight` at which the gain is 0; None: it has no gain."""

    def at(self, place: str) -> NormLayer:
        """Return the layer at a place: attn or mlp, in the wiring of that sublayer, embedding or final. This one,
        unless its start depends on the place."""
        return self

    def build(self, dim: int) -> nn.Module:
        """Return the module: [..., dim] -> [..., dim], with the dtype of its input."""
        raise NotImplementedError

    def build_statistic(self, dim: int) -> nn.Module:
        """Return the module without gain and shift, for a model whose gains are along another dimension than the
        statistic. Optional: such a model refuses a layer that has none."""
        raise NotImplementedError

    @property
    def has_statistic(self) -> bool:
        """Whether `build_statistic` is defined."""
        return type(self).build_statistic is not NormLayer.build_statistic

    def reference(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the formula of x [..., dim] written out, with the parameters of the module by name. Optional:
        `ablate check` compares the module with it."""
        raise NotImplementedError

    def validate(self, dim: int, causal: bool) -> list[Problem]:  # type: ignore[override]
        """Return the problems with this layer on `dim` features in a causal or non-causal model."""
        return []


def check_centred(dim: int) -> list[Problem]:
    """Return the problem of a layer that re-centres one feature alone."""
    text = "re-centres, and of one value x - mean(x) is always 0, whatever x is"
    return [Problem("kind", text)] if dim == 1 else []


norm_layers: Registry[NormLayer] = Registry("norm layer", NormLayer)


@norm_layers.register
class RMSNorm(NormLayer):
    """Root mean square normalisation: re-scaled, not re-centred."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: float = Field(1e-6, gt=0)
    """Added to the mean square."""
    formula = "x / sqrt(mean(x^2) + eps) * g"
    source = "Zhang and Sennrich 2019, arXiv 1910.07467, equation 4"

    def build(self, dim: int) -> nn.Module:
        return layer_modules.RMSNormModule(dim, self.eps)

    def build_statistic(self, dim: int) -> nn.Module:
        return layer_modules.RMSNormModule(dim, self.eps, affine=False)


@norm_layers.register
class OffsetRMSNorm(NormLayer):
    """RMSNorm whose gain is 1 + g, with g from 0: what weight decay pulls to is a gain of 1."""

    kind: Literal["rmsnorm1p"] = "rmsnorm1p"
    no_gain = -1.0
    eps: float = Field(1e-6, gt=0)
    """Added to the mean square."""
    formula = "x / sqrt(mean(x^2) + eps) * (1 + g)"
    source = "Gemma Team 2024, arXiv 2403.08295, and its code"
    caveats = "As long as gains do not decay, which is the default, it trains as rmsnorm does."

    def build(self, dim: int) -> nn.Module:
        return layer_modules.OffsetRMSNormModule(dim, self.eps)


@norm_layers.register
class LayerNorm(NormLayer):
    """Layer normalisation: re-centred and re-scaled."""

    kind: Literal["layernorm"] = "layernorm"
    eps: float = Field(1e-6, gt=0)
    """Added to the variance."""
    bias: bool = True
    """Whether there is a learnable shift `b`."""
    formula = "(x - mean(x)) / sqrt(var(x) + eps) * g + b"
    source = "Ba et al. 2016, arXiv 1607.06450"

    def build(self, dim: int) -> nn.Module:
        return layer_modules.LayerNormModule(dim, self.eps, self.bias)

    def build_statistic(self, dim: int) -> nn.Module:
        return layer_modules.LayerNormModule(dim, self.eps, self.bias, affine=False)

    def validate(self, dim: int, causal: bool) -> list[Problem]:  # type: ignore[override]
        return check_centred(dim)


@norm_layers.register
class CenterNorm(NormLayer):
    """Re-centred, not re-scaled: LayerNorm without the division by the standard deviation."""

    kind: Literal["centernorm"] = "centernorm"
    formula = "(x - mean(x)) * g"
    source = "the half of LayerNorm that RMSNorm leaves out, to test that against Zhang and Sennrich 2019"
    caveats = "Not invariant to the scale of x: it may explode as none does."

    def build(self, dim: int) -> nn.Module:
        return layer_modules.CenterNormModule(dim)

    def build_statistic(self, dim: int) -> nn.Module:
        return layer_modules.CenterNormModule(dim, affine=False)

    def validate(self, dim: int, causal: bool) -> list[Problem]:  # type: ignore[override]
        return check_centred(dim)


@norm_layers.register
class PartialRMSNorm(NormLayer):
    """pRMSNorm: the root mean square estimated from the first `k = ceil(p d)` features, the gain on all d."""

    kind: Literal["prmsnorm"] = "prmsnorm"
    p: float = Field(0.0625, gt=0, le=1)
    """The share of the features that the root mean square is computed from; 1 is RMSNorm."""
    eps: float = Field(1e-6, gt=0)
    """Added to the mean square."""
    formula = "x / sqrt(mean(x[:ceil(p d)]^2) + eps) * g"
    source = "Zhang and Sennrich 2019, arXiv 1910.07467"
    caveats = "Not faster than RMSNorm where that has a fused kernel; the estimate is noisy where p d is small."

    def build(self, dim: int) -> nn.Module:
        return self._build(dim, affine=True)

    def build_statistic(self, dim: int) -> nn.Module:
        return self._build(dim, affine=False)

    def _build(self, dim: int, affine: bool) -> nn.Module:
        k = max(1, math.ceil(self.p * dim - 1e-9))
        if k == dim:
            return layer_modules.RMSNormModule(dim, self.eps, affine)
        return layer_modules.PartialRMSNormModule(dim, k, self.eps, affine)


@norm_layers.register
class PreAffineRMSNorm(NormLayer):
    """PreAffine: RMSNorm of features that are scaled before it too, by learnable factors `lambda` from 1, so that the
    statistic can leave out features with large values. It starts as rmsnorm."""

    kind: Literal["preaffine"] = "preaffine"
    eps: float = Field(1e-6, gt=0)
    """Added to the mean square."""
    formula = "z / sqrt(mean(z^2) + eps) * g, z = lambda x"
    source = "arXiv 2601.22966"
    caveats = (
        "On 2B parameters and 120B tokens the paper's table goes from 1.957 with a gate on the attention's output "
        "(model.attention.gate) to 1.954 with preaffine and 1.951 with gatednorm."
    )

    def build(self, dim: int) -> nn.Module:
        return layer_modules.PreAffineModule(dim, self.eps)


@norm_layers.register
class GatedNorm(NormLayer):
    """GatedNorm: RMSNorm, and a gate for each feature from all features of the normed token, by two matrices of low
    rank: 2 d rank more parameters, for which the paper makes the MLP narrower."""

    kind: Literal["gatednorm"] = "gatednorm"
    eps: float = Field(1e-6, gt=0)
    """Added to the mean square."""
    rank: int = Field(16, gt=0, le=MOST_WIDTH)
    """Number r of values between the two matrices [r, d] and [d, r]."""
    std: float = Field(0.02, ge=0)
    """Standard deviation of the initial weights of both; no start is published. Gates then begin near 1/2, and so halve
    the output."""
    formula = "y * sigmoid(U silu(V y)), y = x / sqrt(mean(x^2) + eps) * g"
    source = "arXiv 2601.22966"
    caveats = (
        "4 d r FLOPs more for each token and norm; about 5% of the time of 2B parameters in the paper. Not invariant "
        "to its own gain, as that changes the gates."
    )

    def build(self, dim: int) -> nn.Module:
        return layer_modules.GatedNormModule(dim, self.eps, self.rank, self.std)


@norm_layers.register
class GroupNorm(NormLayer):
    """Group normalisation of each token separately: LayerNorm within each of `groups` equal groups of features."""

    kind: Literal["groupnorm"] = "groupnorm"
    groups: int = Field(4, gt=0, le=MOST_WIDTH)
    """Number of groups; must divide the number of features."""
    eps: float = Field(1e-6, gt=0)
    """Added to each group's variance."""
    formula = "(x - mean_group(x)) / sqrt(var_group(x) + eps) * g + b"
    source = "Wu and He 2018, arXiv 1803.08494, applied to each token as in Li et al. 2024, arXiv 2412.13795"
    caveats = (
        "A GroupNorm that pools over the sequence, such as torch's on [batch, features, sequence], leaks information "
        "from future tokens."
    )

    def build(self, dim: int) -> nn.Module:
        return layer_modules.GroupNormModule(dim, self.groups, self.eps)

    def validate(self, dim: int, causal: bool) -> list[Problem]:  # type: ignore[override]
        text = f"must divide the {dim} features that it normalises"
        return [Problem("groups", text, self.groups)] if dim % self.groups else []


@norm_layers.register
class BatchNorm(NormLayer):
    """Batch normalisation of each feature over batch and tokens; validation uses running averages."""

    kind: Literal["batchnorm"] = "batchnorm"
    eps: float = Field(1e-5, gt=0)
    """Added to the variance."""
    momentum: float = Field(0.1, gt=0, le=1)
    """Weight of the newest batch in the running averages."""
    formula = "(x - mean_batch(x)) / sqrt(var_batch(x) + eps) * g + b"
    source = "Ioffe and Szegedy 2015, arXiv 1502.03167"
    caveats = (
        "Vision only: in a causal model it would use future tokens. Depends on the batch size: each part of an "
        "accumulated batch and each rank's batch is normalised separately."
    )
    per_feature = True

    def build(self, dim: int) -> nn.Module:
        return layer_modules.BatchNormModule(dim, self.eps, self.momentum)

    def validate(self, dim: int, causal: bool) -> list[Problem]:  # type: ignore[override]
        text = "its statistics include future tokens, so a causal model cannot use it"
        return [Problem("kind", text, self.kind)] if causal else []


class Elementwise(NormLayer):
    """The common base of elementwise functions with a learnable slope in place of a normalisation. In a language model
    a learnable number, initially sqrt(d), multiplies the embedding, as in the papers."""

    alpha: float = Field(0.5, gt=0)
    """Initial slope. The authors of both use 0.5 in ViT; those of DyT in language models 1 at small widths, less at
    large widths, and more before attention than elsewhere."""
    attn: float | None = Field(None, gt=0)
    """Initial slope beside attention. None: `alpha`. DyT in LLaMA: 0.8 with 7B parameters, 0.6 with 13B, 0.2 with 34B
    and 70B."""
    mlp: float | None = Field(None, gt=0)
    """Initial slope beside the MLP. None: `alpha`. DyT in LLaMA: 0.2 with 7B parameters, 0.15 with 13B, 0.05 with 34B
    and 70B."""
    final: float | None = Field(None, gt=0)
    """Initial slope in front of the head. None: `alpha`. DyT in LLaMA: as beside the MLP."""
    scales_embedding = True
    per_feature = True

    def at(self, place: str) -> NormLayer:
        own = {"attn": self.attn, "mlp": self.mlp, "final": self.final}.get(place)
        return self if own is None else self.model_copy(update={"alpha": own})


@norm_layers.register
class DynamicTanh(Elementwise):
    """DyT: an elementwise tanh with a learnable slope in place of a normalisation. In a language model a learnable
    number, initially sqrt(d), multiplies the embedding, as in the paper."""

    kind: Literal["dyt"] = "dyt"
    formula = "tanh(alpha x) * g + b"
    source = "Zhu et al. 2025, arXiv 2503.10622"
    caveats = (
        "Uses no statistic of x: large values of the residual stream saturate the tanh, and its gradient vanishes. "
        "Sensitive to alpha, the width and the learning rate: of 2B parameters the authors of GatedNorm report that it "
        "diverges at a rate of 1e-3."
    )

    def build(self, dim: int) -> nn.Module:
        return layer_modules.DynamicTanhModule(dim, self.alpha)


@norm_layers.register
class DynamicErf(Elementwise):
    """Derf: an elementwise error function with a learnable slope and a learnable shift `s` of its input, from 0, in
    place of a normalisation. In a language model a learnable number, initially sqrt(d), multiplies the embedding."""

    kind: Literal["derf"] = "derf"
    formula = "erf(alpha x + s) * g + b"
    source = "arXiv 2512.10938"
    caveats = (
        "Uses no statistic of x, as dyt. The paper reports, of LayerNorm, DyT and Derf, 82.3, 82.5 and 82.8% on "
        "ImageNet with ViT-B, and losses of 2.94, 2.97 and 2.94 with GPT-2 of 124M parameters, whose code has a slope "
        "of 1 by default."
    )

    def build(self, dim: int) -> nn.Module:
        return layer_modules.DynamicErfModule(dim, self.alpha)


@norm_layers.register
class NoNorm(NormLayer):
    """No normalisation at all."""

    kind: Literal["none"] = "none"
    no_gain = None
    formula = "x"
    source = "Zhang and Sennrich 2019, arXiv 1910.07467, as a baseline"
    caveats = "May explode: a run that diverges is a result."
    per_feature = True

    def build(self, dim: int) -> nn.Module:
        return layer_modules.nn.Identity()


@norm_layers.register
class LibraryLayer(NormLayer):
    """The norm layers of a library's model stay as the library built them. The default of such models, and only for
    them (`model.kind: hf` and `timm`)."""

    kind: Literal["library"] = "library"
    listed = False
    of_library = True
    no_gain = None
    formula = "as the library computes it"
