"""The harness's Hugging Face model wrapped around any model from token ids to logits: the harness tokenises answers,
orders them by length, batches and scores them. Imports lm_eval."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor, nn

from ablate.config.errors import AblateError
from ablate.data.text.tokenizers import Tokenizer

Request = tuple[Any, list[int], list[int]]
"""(texts, or None of a part of a long text; tokens of the context; tokens of the answer)."""


class CountingModel(HFLM):
    """Counts questions that did not fit into the context, as (task, number of the question): `cut`, whose beginning was
    cut off, and `long`, with an answer that is longer than the context and was scored in parts."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cut: set[tuple[str, int]] = set()
        self.long: set[tuple[str, int]] = set()
        self._numbers: list[tuple[str, int]] = []

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._numbers = [(request.task_name, request.doc_id) for request in requests]
        likelihoods: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm)
        self._numbers = []
        return likelihoods

    def _loglikelihood_tokens(self, requests: Sequence[Request], *arguments: Any, **options: Any) -> list[Any]:
        parts: list[Request] = []
        sizes = []
        for number, request in enumerate(requests):
            _, context, answer = request
            question = self._numbers[number : number + 1]  # nothing of the windows of a long text, which all fit
            if len(answer) <= self.max_length:
                pieces = [request]
                if len(context) + len(answer) > self.max_length + 1:
                    self.cut.update(question)
            else:
                windows = get_rolling_token_windows(answer, context[-1], self.max_length, 1)
                pieces = [(None, *make_disjoint_window(window)) for window in windows]
                self.long.update(question)
            parts += pieces
            sizes.append(len(pieces))
        likelihoods = iter(super()._loglikelihood_tokens(parts, *arguments, **options))
        scored = [[next(likelihoods) for _ in range(size)] for size in sizes]
        return [(sum(value for value, _ in part), all(greedy for _, greedy in part)) for part in scored]


class OwnModel(CountingModel):
    """One of Ablate's models: `model` [batch, seq] -> logits, its `tokenizer`, and the `length` that it was trained
    on."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, length: int, batch_size: int) -> None:
        device = next(model.parameters()).device
        whole = SimpleNamespace(device=device, config=SimpleNamespace(), forward=model)
        super().__init__(whole, backend="causal", tokenizer=tokenizer, max_length=length, batch_size=batch_size)

    def _create_tokenizer(self, pretrained: Any, tokenizer: Any, **_: Any) -> None:
        self.text = tokenizer
        self.tokenizer = SimpleNamespace(
            pad_token="padding", vocab_size=tokenizer.vocab_size, bos_token_id=None, eos_token_id=tokenizer.end_of_text
        )

    def tok_encode(self, string: str, *_: Any, left_truncate_len: int | None = None, **__: Any) -> list[int]:
        (ids,) = self.text.encode([string])
        tokens: list[int] = ids.tolist()
        return tokens[-left_truncate_len:] if left_truncate_len else tokens

    @property
    def prefix_token_id(self) -> int:
        if self.text.end_of_text is None:
            raise AblateError("A text without a context needs an end of text before it, and the tokenizer has none.")
        return int(self.text.end_of_text)

    def _model_call(self, inps: Tensor, attn_mask: Any = None, labels: Any = None) -> Tensor:
        with torch.no_grad():
            return self.model.forward(inps).float()

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        raise AblateError(
            "A task that generates text needs a model of transformers: export the model with --to hf and evaluate "
            "hf:FOLDER."
        )
