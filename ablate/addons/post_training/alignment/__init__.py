"""Alignment of language models with preference pairs, by TRL."""

from ablate.experiment.align import AlignConfig

__all__ = ["AlignConfig"]
