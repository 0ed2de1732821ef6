"""`trainer.diagnose`: measurements on the layers during training."""

from __future__ import annotations

from typing import Any

from ablate.data import Corpus
from ablate.experiment.extensions import Extension


class DiagnoseExtension(Extension):
    """Measures the layers in training."""

    precedes_validation = True

    def build_callbacks(self, task: Any, corpus: Corpus, curves: Any) -> list[Any]:
        from ablate.diagnostics.callback import LayerDiagnostics  # imports Lightning

        return [LayerDiagnostics(task, corpus)] if task.experiment.model.layers else []


EXTENSION = DiagnoseExtension()
