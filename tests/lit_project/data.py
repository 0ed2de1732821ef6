"""Data modules with the habits of public projects: hyperparameters, or a dataclass that is told more by `connect`."""

from dataclasses import dataclass, field

import torch
from lightning import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset, random_split


class DigitsDataModule(LightningDataModule):
    def __init__(self, data_dir: str = "data/", train_val_split: tuple[int, int] = (48, 16), batch_size: int = 8):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.data_train = self.data_val = None

    def setup(self, stage=None):
        if not self.data_train and not self.data_val:
            x = torch.randn(sum(self.hparams.train_val_split), 8, generator=torch.Generator().manual_seed(1))
            dataset = TensorDataset(x, (x[:, 0] > 0).long())
            split = torch.Generator().manual_seed(42)
            self.data_train, self.data_val = random_split(dataset, self.hparams.train_val_split, generator=split)

    def train_dataloader(self):
        return DataLoader(self.data_train, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.data_val, batch_size=self.hparams.batch_size)


@dataclass
class Tokens(LightningDataModule):
    seed: int = 42
    batch_size: int = field(init=False, repr=False, default=1)

    def __post_init__(self):
        super().__init__()

    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None):
        self.batch_size = batch_size

    def train_dataloader(self):
        ids = torch.arange(64).view(8, 8) % 16
        rows = [{"input_ids": row, "labels": (row + 1) % 16} for row in ids]
        shuffle = torch.Generator().manual_seed(self.seed)
        return DataLoader(rows, batch_size=self.batch_size, shuffle=True, generator=shuffle)

    def val_dataloader(self):
        return DataLoader(self.train_dataloader().dataset, batch_size=self.batch_size)


def connected_tokens(batch_size: int = 4, **more):
    """What three lines in a project do for a data module that is told more."""
    data = Tokens(**more)
    data.connect(batch_size=batch_size)
    return data


class Numbers(LightningDataModule):
    def __init__(self, count: int = 3, batch_size: int = 1, validated: bool = True):
        super().__init__()
        self.count, self.batch_size, self.validated = count, batch_size, validated

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.arange(self.count)), batch_size=self.batch_size)

    def val_dataloader(self):
        return self.train_dataloader() if self.validated else []
