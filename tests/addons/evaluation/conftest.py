"""A small task in local files, and models whose answers are known."""

import json

import pytest
import torch
from torch import nn

QUESTIONS = [
    {"goal": "Boil an egg", "sol1": "# pot of water", "sol2": "@ dry pan", "label": 0},
    {"goal": "Dry a towel, quickly and without a line", "sol1": "# bucket", "sol2": "@ sunny wall", "label": 1},
    {"goal": "Cut bread", "sol1": "# knife", "sol2": "@ spoon of the soup", "label": 0},
    {"goal": "Find north", "sol1": "# compass", "sol2": "@ clock", "label": 0},
    {"goal": "Sleep", "sol1": "# loud hall", "sol2": "@ quiet room at night", "label": 1},
]


class Likes(nn.Module):
    """Gives the next byte by `weights` (byte -> logit), whatever came before."""

    def __init__(self, weights):
        super().__init__()
        logits = torch.zeros(256)
        for byte, logit in weights.items():
            logits[ord(byte)] = logit
        self.logits = nn.Parameter(logits)

    def forward(self, tokens):
        return self.logits.expand(*tokens.shape, 256)


@pytest.fixture
def likes():
    return Likes


@pytest.fixture
def task_data(tmp_path):
    """A folder with the questions of piqa."""
    folder = tmp_path / "tasks" / "piqa"
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return folder.parent
