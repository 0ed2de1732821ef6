"""Tiny models of the families whose sublayers are known, and what their own parts are called beside ours."""

import torch

LLAMA = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 2,
    "max_position_embeddings": 64,
}  # fmt: skip
GPT2 = {"n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 64}
VIT = {"patch_size": 2, "embed_dim": 16, "depth": 4, "num_heads": 2}
HF = {
    "llama": {"config": "llama", **LLAMA, "num_key_value_heads": 1},
    "llama-tied": {"config": "llama", **LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "qwen2": {"config": "qwen2", **LLAMA, "num_key_value_heads": 1},
    "qwen3": {"config": "qwen3", **LLAMA, "head_dim": 12, "num_key_value_heads": 1},
    "mistral": {"config": "mistral", **LLAMA, "num_key_value_heads": 2, "head_dim": 8},
    "gpt2": {"config": "gpt2", **GPT2},
    "gpt2-untied": {"config": "gpt2", **GPT2, "tie_word_embeddings": False, "scale_attn_by_inverse_layer_idx": True},
    "bert": {"config": "bert", **LLAMA, "is_decoder": True},
}
TIMM = {
    "vit": {"name": "vit_tiny_patch16_224", **VIT},
    "vit-qk": {"name": "vit_tiny_patch16_224", **VIT, "qk_norm": True, "init_values": 0.1, "drop_path_rate": 0.1},
    "vit-average": {"name": "vit_tiny_patch16_224", **VIT, "global_pool": "avg", "class_token": False},
    "deit": {"name": "deit_tiny_patch16_224", **VIT},
    "deit-distilled": {"name": "deit_tiny_distilled_patch16_224", **VIT},
}
OTHERS = {  # whose sublayers are not known
    "gpt_neox": {"kind": "hf", "config": "gpt_neox", **LLAMA},
    "opt": {
        "kind": "hf", "config": "opt", "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "max_position_embeddings": 64, "word_embed_proj_dim": 16,
    },
    "swin": {
        "kind": "timm", "name": "swin_tiny_patch4_window7_224", "patch_size": 2, "embed_dim": 8, "depths": [1, 1],
        "num_heads": [2, 2], "window_size": 2,
    },
    "convnext": {
        "kind": "timm", "name": "convnext_atto", "depths": [1, 1, 1, 1], "dims": [8, 12, 12, 16], "patch_size": 1
    },
}  # fmt: skip
KNOWN = {name: {"kind": "hf", **fields} for name, fields in HF.items()}
KNOWN |= {name: {"kind": "timm", **fields} for name, fields in TIMM.items()}
VOCAB, SEQ, IMAGE, CLASSES = 53, 13, (1, 8, 8), 5

BLOCKS = {"gpt2": "transformer.h", "bert": "bert.encoder.layer", "vit": "blocks", "deit": "blocks"}
ENDS = {
    "llama": {"input_layernorm": "attn_residual.norm", "post_attention_layernorm": "mlp_residual.norm",
              "self_attn": "attn.self_attn", "mlp": "mlp.mlp"},
    "gpt2": {"ln_1": "attn_residual.norm", "ln_2": "mlp_residual.norm", "attn": "attn.attn", "mlp": "mlp.mlp"},
    "bert": {"attention.output.LayerNorm": "attn_residual.norm", "output.LayerNorm": "mlp_residual.norm",
             "attention.self": "attn.self", "attention.output.dense": "attn.dense",
             "intermediate": "mlp.intermediate", "output.dense": "mlp.dense"},
    "vit": {"norm1": "attn_residual.norm", "norm2": "mlp_residual.norm", "attn": "attn.attn", "ls1": "attn.ls1",
            "mlp": "mlp.mlp", "ls2": "mlp.ls2"},
}  # fmt: skip
"""Module of a layer of the library -> the same in a layer of ours."""


def rename(case, name):
    """The name in a wired model of what a library calls `name`."""
    family = case.partition("-")[0]
    blocks = f"{BLOCKS.get(family, 'model.layers')}."
    if not name.startswith(blocks):
        return f"net.{name}"
    index, _, rest = name.removeprefix(blocks).partition(".")
    ends = ENDS.get(family) or ENDS["vit" if family == "deit" else "llama"]
    own = next(theirs for theirs in sorted(ends, key=len, reverse=True) if rest.startswith(f"{theirs}."))
    return f"net.{blocks}{index}.{ends[own]}{rest.removeprefix(own)}"


def shape_of(settings):
    return (SEQ,) if settings["kind"] == "hf" else IMAGE


def classes_of(settings):
    return VOCAB if settings["kind"] == "hf" else CLASSES


def inputs_of(settings):
    generator = torch.Generator().manual_seed(2)
    if settings["kind"] == "hf":
        return torch.randint(VOCAB, (2, SEQ), generator=generator)
    return torch.randn(2, *IMAGE, generator=generator, dtype=torch.float64)
