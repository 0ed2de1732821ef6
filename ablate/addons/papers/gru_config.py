"""The GRU language model's configuration. Its model: `ablate.addons.papers.gru`."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ablate.config.bounds import MOST_LAYERS, MOST_VOCABULARY, MOST_WIDTH
from ablate.models import ModelConfig, models
from ablate.norms import Initialization, Placement, Stack

if TYPE_CHECKING:
    from torch import Tensor


@models.register
class GRU(ModelConfig):
    """A language model of gated recurrent units, with norms on the summed inputs of the input and of the recurrent
    matrices (Ba et al. 2016, arXiv 1607.06450, supplement; Zhang and Sennrich 2019, arXiv 1910.07467). Its layers have
    no residual connections, so that it takes no placement but summed_inputs; norm.layer=none is the plain GRU."""

    kind: Literal["gru"] = "gru"
    hidden: int = Field(128, gt=0, le=MOST_WIDTH)
    """Width d of the embedding and of the hidden state of each layer."""
    layers: int = Field(2, ge=0, le=MOST_LAYERS)
    """Number L of layers. 0: embedding and head alone."""
    vocab_size: int | None = Field(None, gt=0, le=MOST_VOCABULARY)
    """Size of the vocabulary. None: the tokenizer's."""

    heads: ClassVar[int] = 0
    task: ClassVar[str] = "language_modeling"
    per_token: ClassVar[bool] = True
    has_residuals: ClassVar[bool] = False
    unrolls: ClassVar[bool] = True
    honours: ClassVar[frozenset[str]] = frozenset({"no_final_norm", "embedding_scale"})
    defaults: ClassVar[dict[str, Any]] = {
        "data.kind": "topics",
        "norm.kind": "summed_inputs",
        "norm.layer.kind": "rmsnorm",
        "init.kind": "fan_in",
    }

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Any:
        return resolve_name("ablate.addons.papers.gru:GRUModel")(self, norm, init, self.vocabulary(classes))

    def stack(self) -> Stack:
        normed = (2 * self.hidden, self.hidden)  # both gates together, and the candidate
        return Stack(self.layers, self.hidden, 0, 0, 0, 0, causal=True, token_embedding=True, summed_inputs=normed)

    def vocabulary(self, classes: int) -> int:
        return self.vocab_size or classes

    def layer_parameters(self) -> int:
        return self.layers * 6 * self.hidden**2

    def attention_flops(self, shape: tuple[int, ...]) -> int:
        return 0

    def count_own_norms(self) -> tuple[int, int]:
        return 4, 0

    def count_classes(self, state: Mapping[str, Tensor]) -> int:
        return len(state["embed_tokens.weight"])

    def narrowed(self, share: float) -> dict[str, Any]:
        return {"hidden": max(4, 4 * round(self.hidden * share**0.5 / 4))}
