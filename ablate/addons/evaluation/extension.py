"""`evaluation.tasks`: downstream tasks that are scored during training."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ablate.data import Corpus
from ablate.experiment.extensions import Extension
from ablate.experiment.parts import EvaluationConfig
from ablate.experiment.tree import Experiment


class EvaluationExtension(Extension):
    """Scores downstream tasks in training."""

    precedes_validation = True

    def count_items(self, experiment: Experiment) -> dict[str, int]:
        return dict(_count_items(experiment.evaluation))

    def build_callbacks(self, task: Any, corpus: Corpus, curves: Any) -> list[Any]:
        from ablate.addons.evaluation.callback import Downstream  # imports Lightning

        return [Downstream(task.experiment, curves)]


@lru_cache(maxsize=8)  # a sweep asks several times, and loading tasks takes seconds
def _count_items(config: EvaluationConfig) -> dict[str, int]:
    from ablate.addons.evaluation.tasks import count_questions, load_tasks

    return count_questions(load_tasks(config.tasks, config.task_data, config.shots, config.limit), config.limit)


EXTENSION = EvaluationExtension()
