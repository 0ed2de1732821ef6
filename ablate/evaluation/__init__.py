"""Scores of trained language models on downstream tasks, as lm-evaluation-harness defines these."""

from ablate.experiment.evaluation import EvaluationConfig

__all__ = ["EvaluationConfig"]
