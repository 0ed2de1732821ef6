"""Data to train and validate on.

`text`, `images` and `conversations` contain the kinds. They share:
`readers` read files, `files` find them and store prepared data, `splits` select held-out items, `order` determines the
order of items, `hub` opens datasets of the Hugging Face hub.
"""

# importing a module registers its kinds and presets, in the order in which they are listed
from ablate.data.base import IGNORED, Batch, BatchDataset, Corpus, DataConfig, Samples, ValSet, data_kinds

# isort: split
from ablate.data.images.digits import Digits

# isort: split
from ablate.data.images.config import ImageDataset, ImageFiles, ImageFolder, MaskFolder

# isort: split
from ablate.data.images.glyphs import Glyphs

# isort: split
from ablate.data.conversations.instructions import Instructions
from ablate.data.conversations.preferences import PairCorpus, Pairs, Preferences

# isort: split
from ablate.data.text.config import PRESETS, Text, Topics

# isort: split
from ablate.data.text.packages import Packages

# isort: split
from ablate.data.text.token_files import TokenFiles

# isort: split
from ablate.data.order import PermutedBatches, SequentialBatches, build_loader, draw_permutation
from ablate.data.splits import split
from ablate.data.text.tokenizers import Tokenizer, load_tokenizer
from ablate.data.user_datasets import UserDataset

__all__ = [
    "IGNORED",
    "PRESETS",
    "Batch",
    "BatchDataset",
    "Corpus",
    "DataConfig",
    "Digits",
    "Glyphs",
    "ImageDataset",
    "ImageFiles",
    "ImageFolder",
    "Instructions",
    "MaskFolder",
    "Packages",
    "PairCorpus",
    "Pairs",
    "PermutedBatches",
    "Preferences",
    "Samples",
    "SequentialBatches",
    "Text",
    "TokenFiles",
    "Tokenizer",
    "Topics",
    "UserDataset",
    "ValSet",
    "build_loader",
    "data_kinds",
    "draw_permutation",
    "load_tokenizer",
    "split",
]
