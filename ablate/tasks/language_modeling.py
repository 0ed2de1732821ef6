"""Next-token prediction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ablate.data import IGNORED, Corpus, ValSet
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.tasks import gradients
from ablate.tasks.base import Compiled, Task
from ablate.tasks.losses import predict_tokens
from ablate.tasks.metrics import BITS_PER_BYTE, PERPLEXITY


class LanguageModeling(Task):
    """Reports `val/perplexity` and, where the tokenizer's bytes are known, `val/bits_per_byte`.

    Where sequences are padded, the loss of an update is the mean over all its targets but padding, whatever ranks and
    accumulated batches they are in. How many there are is known only when all of them have been through: until then
    each loss is a sum over the number of positions, and the gradient is scaled before the update.
    """

    unit = "tokens"

    def __init__(
        self, experiment: Experiment, corpus: Corpus, compiled: Compiled = False, model: Model | None = None
    ) -> None:
        super().__init__(experiment, corpus, compiled, model)
        self.bytes_per_token = corpus.bytes_per_token
        self.padded = corpus.padded
        self._counts: list[Tensor] = []  # the targets but padding of the batches accumulated so far

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return predict_tokens(self.model, inputs, targets)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if self.padded:
            self._counts.append((batch[1] != IGNORED).sum())
        return super().training_step(batch, batch_idx)

    def on_after_backward(self) -> None:
        config = self.experiment.trainer
        if not self.padded or len(self._counts) < config.accumulate:
            return
        targets = ranks.total(torch.stack(self._counts).sum())
        self._counts.clear()
        self.train_loss_scale = config.batch_size * self.per_item * config.tensor_parallel / targets
        gradients.scale(self.parameters(), self.train_loss_scale)

    def compute_metrics(self, loss: float) -> dict[str, float]:
        return {f"val/{name}": value for name, value in self._compute_text_metrics(loss, self.bytes_per_token).items()}

    def compute_further_metrics(self, loss: float, part: ValSet) -> dict[str, float]:
        return self._compute_text_metrics(loss, part.bytes_per_token)

    @staticmethod
    def _compute_text_metrics(loss: float, bytes_per_token: float | None) -> dict[str, float]:
        metrics = {PERPLEXITY: math.exp(min(loss, 700.0))}  # beyond which there is no such number
        if bytes_per_token:
            metrics[BITS_PER_BYTE] = loss / math.log(2) / bytes_per_token
        return metrics
