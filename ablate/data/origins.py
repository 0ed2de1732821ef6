"""Where text comes from: files of one's own, or a dataset. The fields that kinds of data share for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from pydantic import Field, model_validator

from ablate.config.base import Config, Names
from ablate.data.base import DataConfig


class Origin(NamedTuple):
    """Files, or if one is named a split of a dataset."""

    files: Sequence[str]
    dataset: str | None = None
    subset: str | None = None
    split: str = ""
    revision: str | None = None


class EndOfText(Config):
    """Which token stands between documents."""

    end_of_text: str | None = Field(None, min_length=1)
    """The token that ends each document or answer, or none. None: `eos_token` in the tokenizer_config.json beside the
    tokenizer, or the token that is known for such tokenizers; where neither is there, several documents are refused."""


class FilesOrDataset(Config):
    """Files of one's own, or a dataset."""

    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "files": ("dataset", "subset", "train_split", "val_split", "split", "revision"),
        "dataset": ("files",),
        "val_files": ("val_split",),
        "val_split": ("val_files",),
    }
    files: Names = ()
    """Paths or globs (`**` goes into subfolders), relative to the current directory; the files of a glob are sorted."""
    dataset: str | None = None
    """Instead of `files`: a dataset of the Hugging Face hub, such as allenai/c4, or a folder that `datasets` can load.
    """
    subset: str | None = None
    """The dataset's subset (configuration), such as en."""
    revision: str | None = None
    """Branch, tag or commit of the dataset on the hub. None: main, at the commit when this machine first read it."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> FilesOrDataset:
        if bool(self.files) == (self.dataset is not None):
            raise ValueError(f"needs either files or dataset, and {'both are' if self.files else 'none is'} given")
        settings = [name for name in ("subset", "revision", "val_split") if getattr(self, name, None) is not None]
        if settings and self.dataset is None:
            raise ValueError(f"{', '.join(settings)}: only valid with `dataset`, which is not set")
        return self

    def locate(self, split: str) -> Origin:
        """Return the files, or a split of the dataset."""
        return Origin(self.files, self.dataset, self.subset, split, self.revision)


class TextOrigin(EndOfText, FilesOrDataset, DataConfig):
    """Text to train on in files or in a dataset."""

    train_split: str = "train"
    """The dataset's split to train on."""


class TwoOrigins(TextOrigin):
    """Text with a validation set of its own, if one is named."""

    val_files: Names = ()
    """The validation set as files. Without it, and without `val_split`, a part of the training data is held out."""
    val_split: str | None = None
    """The dataset's split to validate on. None: a part of `train_split` is held out."""

    @model_validator(mode="after")
    def _has_one_validation_set(self) -> TwoOrigins:
        if self.val_split is not None and self.val_files:
            raise ValueError("both val_split and val_files are given; remove one")
        return self

    def locate_validation(self) -> Origin | None:
        """Return where the validation set is; None if none is named."""
        if self.val_files:
            return Origin(self.val_files)
        return None if self.val_split is None else self.locate(self.val_split)
