"""Models of timm and transformers by name: their configurations. The models, with the libraries:
`ablate.models.libraries`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict, model_validator

from ablate.config.building import gather_problems
from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.models.config import ModelConfig, models
from ablate.norms import Initialization, Placement, Stack

if TYPE_CHECKING:
    from torch import Tensor

_OWN = {"norm.kind": "library", "norm.layer.kind": "library", "init.kind": "library"}
_ASKS = frozenset({"embedding_norm", "inner_norm", "qkv_norm", "qk", "no_final_norm", "gains", "calibration"})


class ByName(ModelConfig):
    """A model of a library, built anew: no weights are loaded. Further keys are arguments of the library's own; those
    that are not given take the library's default."""

    model_config = ConfigDict(extra="allow")

    of_library: ClassVar[bool] = True

    @classmethod
    def library(cls) -> Any:
        """Return the module of `ablate.models.libraries` that knows the library, which is imported only here."""
        raise NotImplementedError

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of the library that are given."""
        return dict(self.model_extra or {})

    @property
    def blueprint(self) -> Any:
        """The model without weights, an `ablate.models.libraries.base.Blueprint`."""
        return self.library().open_blueprint(self)

    @model_validator(mode="after")
    def _check(self) -> ByName:
        if problems := self.library().find_problems(self):
            raise gather_problems(problems, type(self).__name__)
        return self

    @property
    def hidden(self) -> int:
        """Width of the hidden state; where stages differ, of the last stage."""
        return self.stack().hidden

    @property
    def layers(self) -> int:
        """Number of layers, or of stages if the model has stages."""
        return self.stack().depth

    @property
    def heads(self) -> int:
        """Number of attention heads; 0 where the library does not say."""
        return self.stack().heads

    @property
    def honours(self) -> frozenset[str]:  # type: ignore[override]
        plan = self.blueprint
        if plan.family is None:
            return frozenset()
        refused = set() if plan.family.embedding else {"embedding_norm"}
        return _ASKS - refused - ({"qkv_norm", "qk"} if plan.own_norms[0] else set())

    def stack(self) -> Stack:
        return self.blueprint.stack

    def layer_parameters(self) -> int:
        return self.blueprint.layer_parameters

    def count_own_norms(self) -> tuple[int, int]:
        return self.blueprint.own_norms

    def tied_weights(self) -> dict[str, str]:
        return dict(self.blueprint.tied)

    def count_classes(self, state: Mapping[str, Tensor]) -> int:
        return len(state[self.blueprint.output])

    def validate_choices(self, norm: Placement, init: Initialization) -> list[Problem]:
        return self.blueprint.validate_choices(self.title, norm, init)

    def narrowed(self, share: float) -> dict[str, Any]:
        text = f"{self.title} cannot be made narrower: its sizes are arguments of the library. Leave --scale-model out"
        raise ConfigError([Problem("model.kind", text, self.kind)])

    def validate(self) -> list[Problem]:  # type: ignore[override]
        return []  # `_check` has reported them; a model that cannot be built has no properties

    def build(self, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> Any:
        return self.library().build(self, norm, init, classes, shape)


@models.register
class HuggingFace(ByName):
    """A causal language model of transformers, built anew from its configuration. Further keys are fields of that
    configuration, such as n_layer."""

    kind: Literal["hf"] = "hf"
    config: str
    """A model type of transformers (gpt2, llama, qwen3), a folder or file with a config.json, or a name on the hub. A
    mapping with `model_type` is the same as that type and its other keys beside it. The vocabulary is the tokenizer's,
    unless `vocab_size` is given."""

    task: ClassVar[str] = "language_modeling"
    per_token: ClassVar[bool] = True
    defaults: ClassVar[dict[str, Any]] = {"data.kind": "topics", **_OWN}
    example: ClassVar[Mapping[str, Any]] = {
        "config": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    }  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, data: Any) -> Any:
        """Put the fields of a config.json beside the model type: the stored experiment then needs no file."""
        if not isinstance(data, Mapping) or not isinstance(data.get("config"), (str, Mapping)):
            return data
        found = cls.library().resolve(data["config"])
        if isinstance(found, Problem):
            raise gather_problems([found], cls.__name__)
        model_type, fields = found
        return {**fields, **data, "config": model_type}

    @classmethod
    def library(cls) -> Any:
        return resolve_name("ablate.models.libraries.hf")

    @property
    def title(self) -> str:
        return f"hf {self.config}"

    def vocabulary(self, classes: int) -> int:
        return self.options.get("vocab_size") or classes

    def attention_flops(self, shape: tuple[int, ...]) -> int:
        if self.blueprint.family is not None:
            return super().attention_flops(shape)
        return int(self.library().measure_attention(self, shape))


@models.register
class Timm(ByName):
    """An image model of timm by its name, built anew. Further keys are arguments of the model, such as depth."""

    kind: Literal["timm"] = "timm"
    name: str
    """Its name in timm: vit_tiny_patch16_224, deit_tiny_patch16_224, swin_tiny_patch4_window7_224, convnext_atto. The
    classes and the size of the images are those of the data."""

    task: ClassVar[str] = "image_classification"
    defaults: ClassVar[dict[str, Any]] = {"data.kind": "digits", **_OWN}
    example: ClassVar[Mapping[str, Any]] = {
        "name": "vit_tiny_patch16_224", "patch_size": 2, "embed_dim": 16, "depth": 4, "num_heads": 2
    }  # fmt: skip

    @classmethod
    def library(cls) -> Any:
        return resolve_name("ablate.models.libraries.timm_models")

    @property
    def title(self) -> str:
        return f"timm {self.name}"

    def tokens_per_item(self, shape: tuple[int, ...]) -> int:
        return int(self.library().measure(self, shape).tokens)

    def sequence_length(self, shape: tuple[int, ...]) -> int:
        return self.tokens_per_item(shape)

    def attention_flops(self, shape: tuple[int, ...]) -> int:
        return int(self.library().measure(self, shape).attention)

    def input_shape(self, state: Mapping[str, Tensor], length: int) -> tuple[int, ...]:
        channels, height, width = state["shape"].tolist()
        return channels, height, width


@functools.cache
def _find_in_libraries(name: str) -> Mapping[str, Any] | None:
    """Return the model that a name of timm, or a type of transformers, stands for. The libraries, which take seconds to
    import, are asked only for a name that Ablate does not have."""
    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        return None
    if Timm.library().has_model(name):
        return {"kind": "timm", "name": name}
    try:
        return {"kind": "hf", "config": name} if name in HuggingFace.library().list_causal() else None
    except AblateError:  # transformers is not installed
        return None


models.look_up = _find_in_libraries
