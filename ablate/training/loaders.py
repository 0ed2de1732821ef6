"""Lightning's view of a corpus: loaders whose order depends on the seed and the number of updates alone."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from ablate.config import Experiment
from ablate.data import Corpus, PermutedBatches, SequentialBatches, loader
from ablate.errors import DataError


def plain(error: DataError) -> DataError:
    """`error` with its own message alone: out of a worker process, its whole traceback is in it."""
    return DataError(str(error).rpartition(f"{DataError.__qualname__}: ")[2].strip())


class Loaders(LightningDataModule):
    """Training batches in a seeded permutation, starting where the Trainer stands; validation in order."""

    def __init__(self, experiment: Experiment, corpus: Corpus) -> None:
        super().__init__()
        self.config, self.seed, self.corpus = experiment.trainer, experiment.seed, corpus
        self.batch_size = self.config.batch_size // self.config.accumulate

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        data = self.corpus.train.seeded(self.seed)
        batches = PermutedBatches(
            len(data),
            self.batch_size,
            self.seed,
            start_batch=self.trainer.global_step * self.config.accumulate,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            with_epoch=data.with_epoch,
        )
        return loader(data, batches, self.config.num_workers)

    def val_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        batches = SequentialBatches(
            len(self.corpus.val),
            self.batch_size,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        return loader(self.corpus.val, batches, self.config.num_workers)
