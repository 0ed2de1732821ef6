"""The GRU language model: embedding, a stack of normed GRU layers, untied head. Its fields: `gru_config`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from ablate.addons.papers.gru_config import GRU
from ablate.models.base import Model, build_bias, build_embedding_scale, make_norm_factory, unwrap
from ablate.models.head import CrossEntropy
from ablate.norms import Initialization, NormLayer, Placement, Projection, initialize

GATES = ("reset", "update", "candidate")
"""The gates and the candidate, for which the matrices of a layer have rows in this order."""


class GRULayer(nn.Module):
    """A GRU whose summed inputs are normed, each with gains of its own: inputs x [batch, seq, d] -> its hidden states
    h [batch, seq, d], from h_0 = 0.

        r, z = sigmoid(N1(U_rz h_(t-1)) + N2(W_rz x_t) + b_rz)
        n    = tanh(N3(W_n x_t) + b_n + r * N4(U_n h_(t-1)))
        h_t  = z * h_(t-1) + (1 - z) * n

    N1 and N2 are over the 2 d sums of both gates together, N3 and N4 over the d sums of the candidate n, as in Ba et
    al. 2016 (arXiv 1607.06450, supplement) and in the public code of Zhang and Sennrich 2019 (rlngru_layer of
    github.com/bzhangGo/rmsnorm), where r comes first: pRMSNorm estimates N1 and N2 from sums of the reset gate. The
    reset gate is on the recurrent sum and not on the state, as in torch.nn.GRU; without norms it is torch's, with
    `bias_hh` of zero. The biases b follow the norm, as in the papers' equations (the public code adds them before);
    where the norm layer has a shift, as LayerNorm has by default, this is b, and N1 and N4 have one as well. All biases
    are zero at first.
    """

    def __init__(self, hidden: int, layer: NormLayer) -> None:
        super().__init__()
        self.hidden = hidden
        self.input, self.recurrent = (nn.Linear(hidden, 3 * hidden, bias=False) for _ in range(2))
        self.gates_input_norm, self.gates_recurrent_norm = (layer.build(2 * hidden) for _ in range(2))
        self.candidate_input_norm, self.candidate_recurrent_norm = (layer.build(hidden) for _ in range(2))
        self.gates_bias = build_bias(self.gates_input_norm, 2 * hidden)
        self.candidate_bias = build_bias(self.candidate_input_norm, hidden)

    def forward(self, x: Tensor) -> Tensor:
        sizes = [2 * self.hidden, self.hidden]
        gates, candidate = self.input(x).split(sizes, -1)  # of all steps at once
        gates = self.gates_bias(self.gates_input_norm(gates))
        candidate = self.candidate_bias(self.candidate_input_norm(candidate))
        state, states = torch.zeros_like(x[:, 0]), []
        for gates_in, candidate_in in zip(gates.unbind(1), candidate.unbind(1), strict=True):
            gates_of_state, candidate_of_state = self.recurrent(state).split(sizes, -1)
            reset, update = torch.sigmoid(gates_in + self.gates_recurrent_norm(gates_of_state)).chunk(2, -1)
            new = torch.tanh(candidate_in + reset * self.candidate_recurrent_norm(candidate_of_state))
            state = new + update * (state - new)
            states.append(state)
        return torch.stack(states, 1)


class GRUModel(Model):
    """Token ids [batch, seq] -> logits [batch, seq, vocabulary]; with targets [batch, seq] their `cross_entropy`,
    without all logits in memory at once."""

    config: GRU

    def __init__(self, config: GRU, norm: Placement, init: Initialization, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(vocab_size, config.hidden)
        self.embed_scale = build_embedding_scale(norm, init, config.stack())
        self.layers = nn.ModuleList(GRULayer(config.hidden, norm.layer) for _ in range(config.layers))
        self.norm = make_norm_factory(norm, config.hidden)() if norm.final_norm else nn.Identity()
        self.lm_head = nn.Linear(config.hidden, vocab_size, bias=False)
        self.criterion = CrossEntropy()
        initialize(self.projections(), init, norm, config.stack())

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.embed_scale(self.embed_tokens(tokens))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        return self.lm_head(x) if targets is None else self.criterion(x, self.lm_head.weight, targets)

    def heads(self) -> Iterable[nn.Module]:
        return [self.criterion]

    def parts(self) -> dict[str, tuple[str, ...]]:
        layers = {f"layers.{i}": (f"layers.{i}",) for i in range(len(self.layers))}
        return {"embedding": ("embed_tokens", "embed_scale"), **layers, "final_norm": ("norm",), "head": ("lm_head",)}

    def embeddings(self) -> tuple[str, ...]:
        return ("embed_tokens",)

    def projections(self) -> Iterator[Projection]:
        yield Projection("embedding", None, self.embed_tokens.weight)
        for i, block in enumerate(self.layers):
            layer = unwrap(block)
            assert isinstance(layer, GRULayer)
            for source, matrix in (("input", layer.input), ("recurrent", layer.recurrent)):
                for gate, weight in zip(GATES, matrix.weight.chunk(3), strict=True):
                    yield Projection(f"{source}_{gate}", i, weight)
        yield Projection("head", None, self.lm_head.weight)
