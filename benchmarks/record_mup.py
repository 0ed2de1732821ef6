"""Records updates of a Pre-LN language model by the package mup, for tests/optim/test_oracle.py.

    pip install mup==1.0.0
    python benchmarks/record_mup.py

The model is written out here in plain torch. Its weights are a formula, so that they need not be recorded; it has three
times the width of the base, trains with AdamW and Adam of mup, in float64, and each update of some elements of each
parameter is written to tests/data/mup_updates.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = Path(__file__).parents[1] / "tests" / "data" / "mup_updates.json"
WIDTH, BASE, HEADS, LAYERS, VOCABULARY, LENGTH, BATCH = 48, 16, 2, 2, 11, 6, 4
LR, WEIGHT_DECAY, BETAS, EPS, UPDATES, ELEMENTS = 1e-2, 0.1, (0.9, 0.95), 1e-30, 4, 5


class Norm(nn.Module):
    """RMSNorm, as its formula stands."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


class Layer(nn.Module):
    """Pre-LN: attention and SwiGLU."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn_norm, self.mlp_norm = Norm(dim), Norm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(dim, 2 * dim, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        head = x.shape[-1] // HEADS
        h = self.attn_norm(x)
        q, k, v = (part(h).unflatten(-1, (HEADS, head)).transpose(1, 2) for part in (self.q, self.k, self.v))
        logits = rotate(q) @ rotate(k).mT * (BASE // HEADS) ** 0.5 / head  # 1/d, and as 1/sqrt(d) at the base
        mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        x = x + self.o((logits.masked_fill(mask, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2))
        h = self.mlp_norm(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


def rotate(x: Tensor) -> Tensor:
    """Rotate pairs (i, i + d/2) of [..., positions, d] by the position's angle."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2]).unsqueeze(-1) * 10000.0 ** (-torch.arange(half) / half)
    a, b = x.chunk(2, -1)
    angle = angle.to(x.dtype)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


class Language(nn.Module):
    """Tokens [batch, positions] -> logits."""

    def __init__(self, dim: int) -> None:
        from mup import MuReadout

        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.Sequential(*(Layer(dim) for _ in range(LAYERS)))
        self.norm = Norm(dim)
        self.head = MuReadout(dim, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(self.embed(tokens))))


def weigh(index: int, shape: tuple[int, ...]) -> Tensor:
    """Return the start of matrix number `index`: a formula, of standard deviation 0.1."""
    count = int(torch.tensor(shape).prod())
    place = torch.arange(count, dtype=torch.float64)
    return (0.1 * 2**0.5 * torch.sin(place * (index + 1) * 0.7 + place.square() * 0.013)).view(shape)


def list_tokens() -> Tensor:
    """Return the tokens of all updates [updates, batch, positions + 1]."""
    count = UPDATES * BATCH * (LENGTH + 1)
    place = torch.arange(count)
    return ((place * place * 7 + place * 3) % VOCABULARY).view(UPDATES, BATCH, LENGTH + 1)


def record(kind: str) -> dict[str, list[list[float]]]:
    """Return parameter -> of each update, the change of its first elements."""
    import mup

    torch.set_default_dtype(torch.float64)
    model = Language(WIDTH)
    mup.set_base_shapes(model, Language(BASE), delta=Language(2 * BASE), rescale_params=False)
    matrices = [(name, p) for name, p in model.named_parameters() if p.ndim == 2]
    with torch.no_grad():
        for index, (_, parameter) in enumerate(matrices):
            parameter.copy_(weigh(index, tuple(parameter.shape)))
    build = {"adamw": mup.MuAdamW, "adam": mup.MuAdam}[kind]
    decaying = [{"params": [p for _, p in matrices], "weight_decay": WEIGHT_DECAY if kind == "adamw" else 0.0}]
    plain = [{"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer = build(decaying + plain, lr=LR, betas=BETAS, eps=EPS)
    changes: dict[str, list[list[float]]] = {name: [] for name, _ in model.named_parameters()}
    for tokens in list_tokens():
        before = {name: p.detach().flatten()[:ELEMENTS].clone() for name, p in model.named_parameters()}
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        for name, p in model.named_parameters():
            changes[name].append((p.detach().flatten()[:ELEMENTS] - before[name]).tolist())
    return changes


if __name__ == "__main__":
    FILE.write_text(json.dumps({kind: record(kind) for kind in ("adamw", "adam")}, indent=0) + "\n", encoding="utf-8")
