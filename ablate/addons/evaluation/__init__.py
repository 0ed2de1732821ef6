"""Scores of trained language models on downstream tasks, as defined by lm-evaluation-harness."""
