"""Facts about a run's environment and cost: a few are tags of the run, all are in an artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.tracking.connection import PLUGINS, client, explain_errors
from ablate.tracking.paths import tracking_uri
from ablate.tracking.tracker import Tracker

FILE = "environment.json"
SHOWN = frozenset(
    (
        "ablate.hardware", "ablate.precision", "ablate.parameters", "ablate.checkpoint", "ablate.folder", "ablate.copy",
        "mlflow.source.git.commit", PLUGINS,
    )
)  # fmt: skip
"""Facts that are tags as well: those that distinguish runs at a glance, and those that are searched by tag."""


def pick_shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that are tags of a run."""
    return {key: value for key, value in facts.items() if key in SHOWN}


def log_facts(tracker: Tracker, facts: Mapping[str, Any]) -> None:
    """Store all facts as the artifact of the run, replacing earlier ones."""
    texts = {key: str(value) for key, value in facts.items()}
    tracker.log_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n", FILE)


def read_texts(run_id: str, file: str) -> dict[str, str]:
    """Return the texts by name in a JSON artifact of a run; none if it has no such artifact. Raises StoreError."""
    with explain_errors(tracking_uri()):
        if not any(item.path == file for item in client().list_artifacts(run_id)):
            return {}
        text = Path(client().download_artifacts(run_id, file)).read_text(encoding="utf-8")
    texts: dict[str, str] = json.loads(text)
    return texts
