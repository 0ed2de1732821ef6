"""The places of the sublayers and norms in a library's families, which a placement must know and no library declares.

Names are the names of the library's modules. A model whose layers have another class keeps its own placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """The layers of one family."""

    own: str
    """Its own placement."""
    blocks: str
    """The container of the layers, from the model on."""
    attn: tuple[str, ...]
    """The modules of the attention, from the layer on: the output of the last is added to the residual stream."""
    mlp: tuple[str, ...]
    """The modules of the MLP."""
    norm: str
    """One of the layer's own norms, like which others are built."""
    final_norm: tuple[str, ...]
    """Possible places of the norm before the head, from the model on; the first that is a norm counts. Empty: there is
    none."""
    head: str
    """The module that a final norm precedes, where the family has none of its own."""
    embedding: str
    """The module that a norm of the embedding follows. "": the family has such a norm of its own."""
    roles: Mapping[str, str]
    """Matrix, from the layer on -> its role; "qkv" where the three are one."""
    drop: str = ""
    """Stochastic depth of a branch, from the layer on."""
    plain_head: bool = False
    """Whether logits are the product of the hidden state and the head's matrix, and nothing more."""


_LLAMA = Family(
    own="pre",
    blocks="model.layers",
    attn=("self_attn",),
    mlp=("mlp",),
    norm="input_layernorm",
    final_norm=("model.norm",),
    head="lm_head",
    embedding="model.embed_tokens",
    roles={
        **{f"self_attn.{role}_proj": role for role in "qkvo"},
        **{f"mlp.{role}_proj": role for role in ("gate", "up", "down")},
    },
    plain_head=True,
)
_GPT2 = Family(
    own="pre",
    blocks="transformer.h",
    attn=("attn",),
    mlp=("mlp",),
    norm="ln_1",
    final_norm=("transformer.ln_f",),
    head="lm_head",
    embedding="transformer.drop",
    roles={"attn.c_attn": "qkv", "attn.c_proj": "o", "mlp.c_fc": "up", "mlp.c_proj": "down"},
    plain_head=True,
)
_BERT = Family(
    own="post",
    blocks="bert.encoder.layer",
    attn=("attention.self", "attention.output.dense", "attention.output.dropout"),
    mlp=("intermediate", "output.dense", "output.dropout"),
    norm="output.LayerNorm",
    final_norm=(),
    head="cls",
    embedding="",
    roles={
        "attention.self.query": "q",
        "attention.self.key": "k",
        "attention.self.value": "v",
        "attention.output.dense": "o",
        "intermediate.dense": "up",
        "output.dense": "down",
    },
)
_VIT = Family(
    own="pre",
    blocks="blocks",
    attn=("attn", "ls1"),
    mlp=("mlp", "ls2"),
    norm="norm1",
    final_norm=("norm", "fc_norm"),
    head="head",
    embedding="norm_pre",
    roles={"attn.qkv": "qkv", "attn.proj": "o", "mlp.fc1": "up", "mlp.fc2": "down"},
    drop="drop_path1",
)

FAMILIES: Mapping[tuple[str, str], Family] = {
    ("LlamaForCausalLM", "LlamaDecoderLayer"): _LLAMA,
    ("Qwen2ForCausalLM", "Qwen2DecoderLayer"): _LLAMA,
    ("Qwen3ForCausalLM", "Qwen3DecoderLayer"): _LLAMA,
    ("MistralForCausalLM", "MistralDecoderLayer"): _LLAMA,
    ("GPT2LMHeadModel", "GPT2Block"): _GPT2,
    ("BertLMHeadModel", "BertLayer"): _BERT,
    ("VisionTransformer", "Block"): _VIT,  # ViT and DeiT
    ("VisionTransformerDistilled", "Block"): _VIT,
}
"""Classes of the model and of its layers -> the family."""
