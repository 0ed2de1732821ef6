"""Next-token prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ablate.config.errors import ConfigError, Problem
from ablate.config.lazy import postpone_imports, torch
from ablate.data import Corpus
from ablate.models import ModelConfig
from ablate.tasks.base import Metric, Task, count_unpadded, tasks

if TYPE_CHECKING:
    from torch import Tensor
    from torchmetrics import MetricCollection

    from ablate.models import Model

with postpone_imports():
    from ablate.models import head


@tasks.register
class LanguageModeling(Task):
    """Predicts the next token at each position of a text. Inputs and targets are token ids, int64 [batch, seq]; a
    target of padding is `IGNORED`.

    The loss is the cross-entropy in nats, which the model computes itself, in chunks if there are many logits.
    `val/bits_per_byte` is reported if the bytes of each token are known.
    """

    kind: Literal["language_modeling"] = "language_modeling"
    z_loss: float = Field(0.0, ge=0)
    """Factor of (log Z)^2, where Z is the sum of the exponentiated logits, which is added to the training loss of each
    target; 1e-4 is usual. The validation loss has none."""

    inputs = "tokens"
    unit = "tokens"
    sample = "sequence"
    learns_from = "the next token at each position of a text"
    least_validation = 16_384
    metrics = (
        Metric("loss", "nats per token", "nats", bounds=(0.0, math.inf), further=True),
        Metric("perplexity", "per token", bounds=(1.0, math.inf), further=True),
        Metric("bits_per_byte", "bits per byte of text", "bits per byte", bounds=(0.0, math.inf), further=True),
    )

    def adapt(self, model: Model, classes: int, shape: tuple[int, ...]) -> None:
        if not self.z_loss:
            return
        heads = [one for one in model.heads() if isinstance(one, head.CrossEntropy)]
        if not heads:
            text = f"model {model.config.title} computes its loss without ablate's `CrossEntropy`: set it to 0"
            raise ConfigError([Problem("task.z_loss", text, self.z_loss)])
        for one in heads:
            one.z_loss = self.z_loss

    def count_items(self, shape: Sequence[int]) -> int:
        return shape[0] if shape else 1

    def build_batch(self, size: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
        return torch.empty((size, *shape), dtype=torch.int64), torch.empty((size, *shape), dtype=torch.int64)

    def count_positions(self, inputs: Tensor, targets: Tensor) -> int:
        return targets.numel()

    def count_targets(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return count_unpadded(targets)

    def compute_loss(self, model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = model(inputs, targets)
        return loss

    def measure_trivial_loss(self, corpus: Corpus, model: ModelConfig) -> float | None:
        return corpus.measure_trivial_loss()

    def compute_metrics(
        self, loss: float, metrics: MetricCollection | None, bytes_per_token: float | None
    ) -> dict[str, float]:
        values = {"perplexity": math.exp(min(loss, 700.0))}  # exp of more overflows
        if bytes_per_token:
            values["bits_per_byte"] = loss / math.log(2) / bytes_per_token
        return values
