"""A language model trained with Ablate, for `AutoModelForCausalLM.from_pretrained(..., trust_remote_code=True)`.

Needs torch and transformers alone. The classes with a `forward` are those of the trained model, without their
constructors: which of them is where, and with which factors, is in `config.json` under `modules`.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

# (the trained model's classes)

CLASSES: dict[str, type[nn.Module]] = {}


def build(tree: dict[str, Any]) -> nn.Module:
    """The module that `tree` describes, with parameters of the right shapes and any values."""
    kind = CLASSES[tree["class"]]
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, value in tree.get("attributes", {}).items():
        setattr(module, name, value)
    for name, shape in tree.get("parameters", {}).items():
        module.register_parameter(name, None if shape is None else nn.Parameter(torch.empty(shape)))
    for name, (shape, dtype) in tree.get("buffers", {}).items():
        module.register_buffer(name, torch.empty(shape, dtype=getattr(torch, dtype)))
    for name, child in tree.get("children", {}).items():
        module.add_module(name, build(child))
    return module


class AblateConfig(PretrainedConfig):
    """`modules` describes the tree of modules; the other fields are what others ask of a language model."""

    model_type = "ablate"

    def __init__(self, modules: dict[str, Any] | None = None, **fields: Any) -> None:
        self.modules = modules
        super().__init__(**fields)


class AblateForCausalLM(PreTrainedModel, GenerationMixin):
    """Token ids to logits. Without a cache of keys and values; padding must stand on the right."""

    config_class = AblateConfig
    base_model_prefix = "model"
    _tied = {"model.lm_head.weight": "model.embed_tokens.weight"}
    _tied_weights_keys = _tied if int(transformers.__version__.split(".")[0]) >= 5 else list(_tied)

    def __init__(self, config: AblateConfig) -> None:
        super().__init__(config)
        assert config.modules is not None
        self.model: Any = build(config.modules)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        pass  # they are loaded

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.model.lm_head

    def prepare_inputs_for_generation(self, input_ids: Tensor, **given: Any) -> dict[str, Any]:
        return {"input_ids": input_ids, "attention_mask": given.get("attention_mask")}

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **ignored: Any,
    ) -> CausalLMOutput:
        """Logits [batch, seq, vocabulary], and with `labels` the mean loss of predicting each from those before it."""
        if attention_mask is not None and attention_mask.shape[-1] > 1:
            mask = attention_mask.bool()
            if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
                raise ValueError("padding must stand on the right: tokenizer.padding_side = 'right'")
        logits = self.model(input_ids)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)
