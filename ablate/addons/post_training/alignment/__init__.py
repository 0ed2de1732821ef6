"""Alignment of language models with preference pairs, by TRL."""
