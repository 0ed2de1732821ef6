"""A model without its numbers: what it has and what it computes, counted without a GPU or memory for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ablate.experiment.extensions import restrict
from ablate.experiment.tree import Experiment
from ablate.models import Model

EMBEDDING = ("embed_tokens.", "vit.patch_embed.", "vit.cls_token", "vit.pos_embed")
HEAD = ("lm_head.", "vit.head.")
BLOCKS = ("layers", "vit.blocks")  # where the model families keep their layers


class _Uninitialized(TorchFunctionMode):
    """Leaves out all initialisation, which the meta device would only pretend to do, slowly."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or getattr(func, "__name__", "") in _RANDOM:
            return args[0] if args else (kwargs or {}).get("tensor")
        return func(*args, **(kwargs or {}))


_RANDOM = ("normal_", "uniform_", "trunc_normal_")


def build_blank(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> Model:
    """Build the model on the meta device, uninitialised, all of it trained."""
    with torch.device("meta"), _Uninitialized():
        return experiment.model.build(experiment.norm, experiment.init, classes, shape)


def skeleton(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> Model:
    """Build the model on the meta device, uninitialised, with what is frozen and adapted. Raises ConfigError for
    unknown parts."""
    model = build_blank(experiment, classes, shape)
    with torch.device("meta"), _Uninitialized():
        restrict(model, experiment)
    return model


def blocks(model: nn.Module) -> Any:
    """The layers of a model, in their container."""
    names = dict(model.named_modules())
    return next(names[name] for name in BLOCKS if name in names)


@dataclass(frozen=True)
class Counts:
    """Numbers of parameters and of FLOPs."""

    total: int
    embedding: int
    """Of the token embedding; of a ViT the patch embedding, class token and position embedding."""
    head: int
    """Of the output projection; 0 where it is tied to the embedding."""
    block: int
    """Of the largest layer."""
    forward_flops: float
    """Of one token, or one image, in the forward pass."""
    frozen: int = 0
    """Parameters that are not trained."""
    frozen_flops: float = 0.0
    """Of one token, or one image, in the forward pass, with matrices that are frozen."""

    @property
    def rest(self) -> int:
        """Of the layers and norms: all but embedding and head."""
        return self.total - self.embedding - self.head

    @property
    def training_flops(self) -> float:
        """Of one token, or one image, forward and backward: the backward pass costs two forward passes, one for what a
        matrix was given and one for the matrix itself, if it is trained."""
        return 3 * self.forward_flops - self.frozen_flops


def count(model: Model, shape: tuple[int, ...]) -> Counts:
    """The counts of `model` on inputs of `shape`."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    return Counts(
        total=sum(sizes.values()),
        embedding=sum(n for name, n in sizes.items() if name.startswith(EMBEDDING)),
        head=sum(n for name, n in sizes.items() if name.startswith(HEAD)),
        block=max((sum(p.numel() for p in block.parameters()) for block in blocks(model)), default=0),
        forward_flops=_image_flops(model, shape) if len(shape) == 3 else _token_flops(model, shape[0]),
        frozen=sum(p.numel() for p in model.parameters() if not p.requires_grad),
        frozen_flops=2 * sum(times * m.weight.numel() for m, times in _used(model) if not m.weight.requires_grad),
    )


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Linear | nn.Conv2d]]:
    """What multiplies by a matrix: (name, module)."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            yield name, module


def _used(model: Model) -> Iterator[tuple[nn.Linear | nn.Conv2d, int]]:
    """What multiplies by a matrix, and how often for one token, or one image."""
    vit: Any = getattr(model, "vit", None)
    for name, module in _matrices(model if vit is None else vit):
        if vit is None:
            yield module, 1
            continue
        patches = vit.patch_embed.num_patches
        tokens = patches + vit.num_prefix_tokens
        yield module, patches if name.startswith("patch_embed") else 1 if name.startswith("head") else tokens


def _token_flops(model: Model, seq: int) -> float:
    """2 FLOPs for each weight, and 2 d for each of the (T + 1) / 2, about T / 2, tokens that a token attends to, twice:
    2 [L (4 d^2 + 3 d i) + V d] + 2 L d T."""
    weights = sum(times * module.weight.numel() for module, times in _used(model))
    return 2 * weights + 2 * len(blocks(model)) * _width(model) * seq


def _image_flops(model: Model, shape: tuple[int, ...]) -> float:
    """The same for all tokens of an image, each of which attends to all; the head sees one, and the patch embedding all
    but the class token."""
    vit: Any = model.get_submodule("vit")
    tokens = vit.patch_embed.num_patches + vit.num_prefix_tokens
    weights = sum(times * module.weight.numel() for module, times in _used(model))
    return 2 * weights + 4 * len(vit.blocks) * _width(model) * tokens**2


def _width(model: Model) -> int:
    config: Any = model.config
    return int(config.hidden)
