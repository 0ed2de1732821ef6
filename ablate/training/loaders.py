"""Lightning's view of a corpus: loaders whose order depends only on the seed and the number of updates."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from ablate.data import BatchDataset, Corpus, SequentialBatches, build_loader
from ablate.distributed import ranks
from ablate.experiment.trainer import MOST_WORKERS, TrainerConfig
from ablate.experiment.tree import Experiment
from ablate.training.random_states import find_part


def count_workers(config: TrainerConfig, data: BatchDataset) -> int:
    """Return the processes that read `data` for this rank. The cores of a process that is alone are those that it
    computes on: the workers of a sweep share them."""
    if config.num_workers != "auto":
        return config.num_workers
    if not torch.cuda.is_available():
        return 0
    cores = torch.get_num_threads() if ranks.world_size() == 1 else ranks.count_cores() // ranks.local_size()
    return min(MOST_WORKERS, data.count_workers(max(1, cores - 1)))


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
        sets = [self.corpus.val, *(part.data for part in self.corpus.val_sets.values())]
        batches = [SequentialBatches(len(data), self.batch_size, **self._part()) for data in sets]
        workers = [count_workers(self.config, data) for data in sets]
        return [build_loader(*one) for one in zip(sets, batches, workers, strict=True)]

    def _part(self) -> dict[str, int]:
        """Return the part of a batch that this rank reads."""
        assert self.trainer is not None
        part, count = find_part(self.trainer.strategy)
        return {"rank": part, "world_size": count}
