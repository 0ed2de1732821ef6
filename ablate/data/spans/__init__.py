"""Questions that are answered by a span of a text, as in SQuAD."""
