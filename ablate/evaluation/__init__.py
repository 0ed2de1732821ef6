"""Scores of trained language models on downstream tasks, as lm-evaluation-harness defines these."""

from ablate.evaluation.config import EvaluationConfig

__all__ = ["EvaluationConfig"]
