"""What our steps are compared with: transformers' LLaMA and timm's ViT in plain loops, and random data for all; and the
schemes of our own that are compared with Pre-LN."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.data import BatchDataset, Corpus, DataConfig, data_kinds
from ablate.norms import placements

PIXELS, CLASSES = 224, 1000
SCHEMES: dict[str, dict[str, Any]] = {name: {"norm": name} for name in placements} | {
    "hc static": {"norm": {"kind": "hc", "dynamic": False}},
    "siamese hybrid_pre": {"norm": {"kind": "siamese", "variant": "hybrid_pre"}},
    "attnres full": {"norm": {"kind": "attnres", "block": 1}},
    "attnres block 4": {"norm": {"kind": "attnres", "block": 4}},
    "gpas on post": {"norm": {"kind": "gpas", "base": "post"}},
    "derf": {"norm.layer": "derf"},
    "gatednorm": {"norm.layer": "gatednorm"},
    "preaffine": {"norm.layer": "preaffine"},
    "gate": {"model.attention.gate": "elementwise"},
    "gate headwise": {"model.attention.gate": "headwise"},
    "sink": {"model.attention.sink": "learned"},
    "sink one": {"model.attention.sink": "one"},
    "value residual": {"model.attention.value_residual": "learned"},
    "temperature": {"model.attention.temperature": True},
}
"""Name -> settings of a LLaMA: each placement, and what else is compared with `pre`."""
Loss = Callable[[Tensor, Tensor], Tensor]


class Tokens(BatchDataset):
    """Random token ids: what they are does not change the speed."""

    def __init__(self, vocabulary: int, seq: int, rows: int = 256) -> None:
        self.ids = torch.randint(vocabulary, (rows, seq + 1), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = self.ids[list(indices)]
        return rows[:, :-1], rows[:, 1:]


class Images(BatchDataset):
    """Random images."""

    def __init__(self, rows: int = 64) -> None:
        random = torch.Generator().manual_seed(0)
        self.images = torch.randn(rows, 3, PIXELS, PIXELS, generator=random)
        self.labels = torch.randint(CLASSES, (rows,), generator=random)

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.images[list(indices)], self.labels[list(indices)]


@data_kinds.register
class RandomTokens(DataConfig):
    """Random tokens of a given vocabulary."""

    kind: Literal["random_tokens"] = "random_tokens"
    vocabulary: int = 512
    """Its size."""
    seq_len: int = 256
    """Tokens in a sequence."""
    rows: int = 256
    """Sequences."""
    task: ClassVar[str] = "language_modeling"

    def load(self, cache: Path) -> Corpus:
        data, words = Tokens(self.vocabulary, self.seq_len, self.rows), f"random tokens of {self.vocabulary}"
        return Corpus(
            data, Tokens(self.vocabulary, self.seq_len, 1), "random", self.vocabulary, (self.seq_len,), None, words
        )


@data_kinds.register
class RandomImages(DataConfig):
    """Random images of 224 x 224 in 1000 classes."""

    kind: Literal["random_images"] = "random_images"
    rows: int = 64
    """Images."""
    task: ClassVar[str] = "image_classification"

    def load(self, cache: Path) -> Corpus:
        return Corpus(Images(self.rows), Images(1), "random", CLASSES, (3, PIXELS, PIXELS), None, "random images")


def llama(size: Any, vocabulary: int, seq: int) -> tuple[nn.Module, Loss]:
    """transformers' model of the same shape as one of our configurations, and the loss of what is called with it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=size.hidden, intermediate_size=size.mlp, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads or size.heads,
        max_position_embeddings=seq, rms_norm_eps=1e-6, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    return model, lambda tokens, _: model(input_ids=tokens, labels=tokens).loss


def vit(size: Any) -> tuple[nn.Module, Loss]:
    """timm's own ViT of the same shape as one of our configurations, and its loss."""
    import timm

    shape = {"embed_dim": size.hidden, "depth": size.layers, "num_heads": size.heads, "patch_size": size.patch_size}
    model = timm.create_model("vit_tiny_patch16_224", img_size=PIXELS, num_classes=CLASSES, **shape)
    return model, lambda images, labels: F.cross_entropy(model(images).float(), labels)


def plain_step(
    model: nn.Module,
    loss: Loss,
    batch: tuple[Tensor, Tensor],
    bf16: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
) -> Callable[[], None]:
    """One update of a plain loop, with fused AdamW unless an optimizer is given; `bf16`: under autocast."""
    used = optimizer or adamw(model)
    inputs, targets = batch
    model.train()

    def step() -> None:
        used.zero_grad()
        with torch.autocast(inputs.device.type, torch.bfloat16) if bf16 else contextlib.nullcontext():
            value = loss(inputs, targets)
        value.backward()
        used.step()

    return step


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """What every plain loop trains with."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
