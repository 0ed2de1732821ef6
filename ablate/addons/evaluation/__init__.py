"""Scores of trained language models on downstream tasks, as defined by lm-evaluation-harness."""

from ablate.experiment.evaluation import EvaluationConfig

__all__ = ["EvaluationConfig"]
