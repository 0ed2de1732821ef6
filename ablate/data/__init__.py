"""Data: kinds, corpora, and the order in which they are read."""

from ablate.data.base import Batch, BatchDataset, Corpus, DataConfig, data_kinds, split
from ablate.data.images import Digits, ImageDataset, ImageFiles, ImageFolder
from ablate.data.order import PermutedBatches, SequentialBatches, loader, permutation
from ablate.data.text import Text, Topics
from ablate.data.tokenizers import Tokenizer, load_tokenizer

__all__ = [
    "Batch",
    "BatchDataset",
    "Corpus",
    "DataConfig",
    "Digits",
    "ImageDataset",
    "ImageFiles",
    "ImageFolder",
    "PermutedBatches",
    "SequentialBatches",
    "Text",
    "Tokenizer",
    "Topics",
    "data_kinds",
    "load_tokenizer",
    "loader",
    "permutation",
    "split",
]
