"""Stacks whose measurements are known by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from ablate.diagnostics.measures import Batch, Layers, Subject


class Linear(nn.Module):
    """y = x W^T, or x itself."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return x @ self.weight.T


class Scaled(nn.Module):
    """x + scale * mlp(x): a layer that is the identity where the scale is 0."""

    def __init__(self, dim, scale):
        super().__init__()
        self.mlp, self.scale = nn.Linear(dim, dim), scale

    def forward(self, x):
        return x + self.scale * self.mlp(x)


class Network(nn.Module):
    """Layers of one class behind an embedding of given vectors, with a linear head."""

    def __init__(self, layers, classes):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        dim = next(layers[0].parameters()).shape[-1]
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def subject_of(model, inputs, targets=None, unit="tokens", there=None):
    """A subject whose items are the rows of `inputs`."""
    targets = (
        torch.zeros(inputs.shape[:2] if unit == "tokens" else len(inputs), dtype=torch.long)
        if targets is None
        else targets
    )

    def load(first, last):
        return Batch(inputs[first:last], targets[first:last], None if there is None else there[first:last])

    per_item = inputs.shape[1] if unit == "tokens" else 1
    return Subject(
        "model", Layers(model), lambda batch: model(batch.inputs), len(inputs), load, per_item, unit, unit == "images"
    )


def loss_by_hand(model, inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
