"""`evaluation.tasks`: downstream tasks that are scored during training."""

from __future__ import annotations

from typing import Any

from ablate.data import Corpus
from ablate.experiment.extensions import Extension


class EvaluationExtension(Extension):
    """Scores downstream tasks in training."""

    def build_callbacks(self, task: Any, corpus: Corpus, curves: Any) -> list[Any]:
        from ablate.evaluation.callback import Downstream  # imports Lightning

        return [Downstream(task.experiment, curves)]


EXTENSION = EvaluationExtension()
