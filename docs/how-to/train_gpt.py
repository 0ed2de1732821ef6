"""A small GPT on the characters of Python's own library, in the style of nanoGPT: torch and nothing of Ablate."""

import argparse
import json
import math
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--depth", type=int, default=2)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

CONTEXT, BATCH, WARMUP = 32, 16, 10
torch.manual_seed(options.seed)

# ------------------------------------------------------------------ data

folder = Path(os.__file__).parent
text = "".join((folder / name).read_text(encoding="utf-8") for name in ("argparse.py", "ast.py", "os.py"))
letters = sorted(set(text))
codes = torch.tensor([letters.index(letter) for letter in text])
train, val = codes[: len(codes) * 9 // 10], codes[len(codes) * 9 // 10 :]


def draw(data: torch.Tensor, generator: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=generator)
    rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


# ------------------------------------------------------------------ model


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(len(letters), width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(letters))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        return functional.cross_entropy(self.head(self.norm(self.blocks(h))).flatten(0, 1), y.flatten())


# ------------------------------------------------------------------ training

model = Gpt(options.depth, options.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)


@torch.no_grad()
def validate() -> float:
    same = torch.Generator().manual_seed(1)  # the same batches for every run
    return sum(model(*draw(val, same)).item() for _ in range(10)) / 10


for step in range(1, options.steps + 1):
    share = min(1.0, step / WARMUP) * 0.5 * (1 + math.cos(math.pi * step / options.steps))
    for group in optimizer.param_groups:
        group["lr"] = options.lr * share
    loss = model(*draw(train))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == options.steps:
        print(json.dumps({"step": step, "train_loss": loss.item(), "val_loss": validate()}), flush=True)
