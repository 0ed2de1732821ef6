"""Windows of a token stream: what a language model is trained and validated on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ablate.data.base import Batch, BatchDataset


class Windows(BatchDataset):
    """Non-overlapping windows of `seq_len + 1` tokens: inputs are all but the last token, targets all but the first.

    Windows share no token, so neither do training and validation. What remains behind the last window is dropped.

    Args:
        tokens: the stream [count], or the .npy file that holds it; a file is mapped on first use and in each process.
        seq_len: tokens of an input.
        numbers: which windows of the stream, in the order of the dataset [n].
    """

    def __init__(self, tokens: Path | NDArray[Any], seq_len: int, numbers: NDArray[np.int64]) -> None:
        self.seq_len, self.numbers = seq_len, numbers
        self._source = tokens
        self._table: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Inputs and targets, int64 [batch, seq_len] each."""
        rows = self.numbers[np.asarray(indices, np.int64)]
        windows = torch.from_numpy(self._windows()[rows].astype(np.int64))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    def _windows(self) -> NDArray[Any]:
        """The windows of the stream, [count // (seq_len + 1), seq_len + 1]."""
        if self._table is None:
            source = self._source
            tokens = np.asarray(np.load(source, mmap_mode="r")) if isinstance(source, Path) else source
            size = self.seq_len + 1
            self._table = tokens[: len(tokens) // size * size].reshape(-1, size)
        return self._table

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}
