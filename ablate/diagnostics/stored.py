"""Reading the measurements that are among the artifacts of a run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.diagnostics.measures.base import FOLDER, parse_number


def read_measurements(run_id: str, files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the contents of those of `files`, `TRAINING` and `MEASURED`, that the run has. Raises MlflowException."""
    client = tracking.client()
    there = {Path(item.path).name for item in client.list_artifacts(run_id, FOLDER)}
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            if name in there:
                file = Path(client.download_artifacts(run_id, f"{FOLDER}/{name}", folder))
                yield json.loads(file.read_text(encoding="utf-8"))


def parse_history(content: Mapping[str, Any], column: str) -> dict[int, list[float]]:
    """Return tokens or images seen -> the number `column` of each layer, from the content of `TRAINING`."""
    course = content["history"].get(column, {})
    return {int(at): [parse_number(value) for value in row] for at, row in course.items()}
