"""Language models aligned by preference pairs, through TRL."""

from ablate.experiment.align import AlignConfig

__all__ = ["AlignConfig"]
