"""Language models aligned by preference pairs, through TRL."""

from ablate.alignment.config import AlignConfig

__all__ = ["AlignConfig"]
