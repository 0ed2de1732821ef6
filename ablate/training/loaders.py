"""Lightning's view of a corpus: loaders whose order depends only on the seed and the number of updates."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from ablate.data import BatchDataset, Corpus, SequentialBatches, build_loader
from ablate.experiment.tree import Experiment
from ablate.training.data_workers import count_workers
from ablate.training.random_states import find_part


class Loaders(LightningDataModule):
    """Training batches in the order of the corpus, starting where the Trainer stands; validation in order."""

    def __init__(self, experiment: Experiment, corpus: Corpus) -> None:
        super().__init__()
        self.config, self.seed, self.corpus = experiment.trainer, experiment.seed, corpus
        self.batch_size = self.config.batch_size // self.config.accumulate

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        return self.corpus.train.batches(
            self.batch_size,
            self.seed,
            start_batch=self.trainer.global_step * self.config.accumulate,
            **self._part(),
            workers=count_workers(self.config, self.corpus.train),
        )

    def val_dataloader(self) -> list[DataLoader[Any]]:
        """Return the validation set, then the further ones in the order of `corpus.val_sets`."""
        further = [part.data for part in self.corpus.val_sets.values()]
        return [self._in_order(data) for data in [self.corpus.val, *further]]

    def _in_order(self, data: BatchDataset) -> DataLoader[Any]:
        batches = SequentialBatches(len(data), self.batch_size, **self._part())
        return build_loader(data, batches, count_workers(self.config, data))

    def _part(self) -> dict[str, int]:
        """Return the part of a batch that this rank reads."""
        assert self.trainer is not None
        part, count = find_part(self.trainer.strategy)
        return {"rank": part, "world_size": count}
