"""A ViT in timm's format: with timm's names, if it is equal to a timm model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ablate.config.errors import AblateError
from ablate.models.llama_config import Llama
from ablate.models.vit_config import ViT
from ablate.training.trained import TrainedModel

ARCHITECTURE = "vit_tiny_patch16_224"  # timm takes everything else from `model_args`
_EPS = 1e-6  # timm's LayerNorm in a ViT


def convert_to_timm(source: TrainedModel) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Return (weights by timm's names, timm's configuration of the model). Raises AblateError if timm has no such
    model."""
    config: Any = source.experiment.model
    if not isinstance(config, ViT):
        accepted = f"{'hf, ' if isinstance(config, Llama) else ''}consolidated, safetensors"
        raise AblateError(f"timm is for ViTs, and this model is a {config.title}. Accepted for it: {accepted}.")
    norm: Any = source.experiment.norm
    fields = (norm.kind, norm.layer.kind, norm.final_norm, getattr(norm.layer, "bias", False))
    if fields != ("pre", "layernorm", True, True) or norm.layer.eps != _EPS:
        raise AblateError(
            "timm only has Pre-LN with LayerNorm, eps 1e-6 and bias (norm=pre norm.layer=layernorm); this model has "
            f"norm={norm.kind} norm.layer={norm.layer.kind}. Accepted for it: consolidated, safetensors."
        )
    if norm.has_qk_norm and (norm.qk != norm.layer or norm.qk_over != "head"):
        raise AblateError(
            "timm's QK-norm is the norm layer of the model, over each head (norm.qk=layernorm norm.qk_over=head); this "
            f"model has norm.qk={norm.qk.kind} norm.qk_over={norm.qk_over}. Accepted for it: consolidated, safetensors."
        )
    if norm.has_qk_norm and source.experiment.multipliers.queries != 1:
        raise AblateError(
            "timm has no place for a multiplier of normed queries, as parametrization.base.head_dim asks for. "
            "Accepted for it: consolidated, safetensors."
        )
    if options := config.attention.after_training.find_set():
        raise AblateError(
            f"timm's ViT has no place for model.attention ({', '.join(options)}). "
            "Accepted for it: consolidated, safetensors."
        )
    classes, (channels, height, width) = source.inputs
    arguments = {
        "img_size": [height, width],
        "patch_size": config.patch_size,
        "in_chans": channels,
        "embed_dim": config.hidden,
        "depth": config.layers,
        "num_heads": config.heads,
        "mlp_ratio": config.mlp_ratio,
        **({"qk_norm": True} if norm.has_qk_norm else {}),
    }
    weights = {
        name.replace("attn_residual.norm.", "norm1.")
        .replace("mlp_residual.norm.", "norm2.")
        .removeprefix("vit."): value
        for name, value in _fold(source).items()
    }
    pixels: Any = source.experiment.data
    statistics = {
        name: list(value) for name in ("mean", "std") if isinstance(value := getattr(pixels, name, None), tuple)
    }
    card = {"input_size": [channels, height, width], "num_classes": classes, "first_conv": "patch_embed.proj"}
    return weights, {
        "architecture": ARCHITECTURE,
        "num_classes": classes,
        "model_args": arguments,
        "pretrained_cfg": {**card, "classifier": "head", "fixed_input_size": True, **statistics},
    }


def _fold(source: TrainedModel) -> dict[str, Tensor]:
    """Return the weights with the multipliers of a parametrisation in them, where timm has no place for these."""
    own: Any = source.experiment.multipliers
    folded = dict(source.state)
    for name, value in source.state.items():
        if own.residual != 1 and (".attn.proj." in name or ".mlp.fc2." in name):
            folded[name] = own.residual * value
        elif own.output != 1 and name == "vit.head.weight":
            folded[name] = own.output * value
        elif own.queries != 1 and ".attn.qkv." in name:
            q, k, v = value.chunk(3)
            folded[name] = torch.cat([own.queries * q, k, v])
    return folded
