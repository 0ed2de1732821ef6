"""Next-token prediction."""

from __future__ import annotations

import math

from torch import Tensor
from torchmetrics.text import Perplexity

from ablate.config import Experiment
from ablate.data import Corpus
from ablate.tasks.base import Task


class LanguageModeling(Task):
    """Reports `val/perplexity` and, where the tokenizer's bytes are known, `val/bits_per_byte`."""

    unit = "tokens"
    reports = ("val/loss", "val/perplexity", "val/bits_per_byte")

    def __init__(self, experiment: Experiment, corpus: Corpus, compiled: bool = False) -> None:
        super().__init__(experiment, corpus, compiled)
        self.bytes_per_token = corpus.bytes_per_token
        self.perplexity = Perplexity()

    def measure(self, logits: Tensor, targets: Tensor) -> None:
        self.perplexity.update(logits, targets)

    def computed(self, loss: float) -> dict[str, float]:
        metrics = {"val/perplexity": self.perplexity.compute().item()}
        self.perplexity.reset()
        if self.bytes_per_token:
            metrics["val/bits_per_byte"] = loss / math.log(2) / self.bytes_per_token
        return metrics
