"""The data of a run as its input in MLflow, which the column Dataset shows and by which runs can be filtered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ablate.tracking.connection import client, explain_errors
from ablate.tracking.paths import tracking_uri

_LONGEST_DIGEST = 36  # characters that MLflow keeps of one


def log_dataset(
    run_id: str, name: str, fingerprint: str, description: str, settings: Mapping[str, Any], profile: Mapping[str, Any]
) -> None:
    """Log a corpus as the training data of a run. Its digest is the beginning of `fingerprint`, its SHA-256, which is
    whole in the source; a run has it once, however often it is logged. Raises StoreError."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = {"fingerprint": fingerprint, "description": description, "settings": settings}
    dataset = Dataset(
        name=name,
        digest=fingerprint[:_LONGEST_DIGEST] or "unknown",
        source_type="ablate",
        source=json.dumps(source, default=str),
        profile=json.dumps(profile),
    )
    with explain_errors(tracking_uri()):
        client().log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
