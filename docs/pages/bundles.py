"""results/published.md: the table of all bundles in docs/results/, and the schema of a bundle."""

from __future__ import annotations

import json
from pathlib import Path

from ablate.addons.bundles.files import read_bundle
from ablate.addons.bundles.page import state_verdict
from ablate.addons.bundles.schema import FILE, Bundle
from ablate.config.formatting import join_words
from ablate.config.markdown import build_table, escape

_HEAD = """\
# Published studies

Each is a bundle: every seed, every curve, the settings, the verdict and its error control, from which
[anybody can check it and run it again](../how-to/publish.md). The table is written from the bundles by `make docs`.
Verdicts are [those of the report](../explanation/verdict.md), of several sizes at the largest; of learning rates over
sizes they say whether the best rate of the smallest [holds at the largest](../explanation/transfer.md), costs loss
there, or neither is shown.

"""
_NONE = "There are none yet.\n"


def build_page(docs: Path) -> str:
    """Return the page, Markdown. Raises AblateError for a bundle that cannot be read."""
    folders = sorted(file.parent for file in (docs / "results").glob(f"*/{FILE}"))
    rows = [_describe(folder) for folder in folders]
    if not rows:
        return _HEAD + _NONE
    header = ("question", "family", "sizes", "runs", "verdict")
    return f'{_HEAD}<div class="filtered" markdown>\n\n{build_table(header, rows)}\n</div>\n'


def build_schema() -> str:
    """Return the JSON schema of the JSON in bundle.json.gz."""
    return json.dumps(Bundle.model_json_schema(), indent=1) + "\n"


def _describe(folder: Path) -> tuple[str, ...]:
    bundle = read_bundle(folder)
    families = sorted({str(sweep.settings.get("model.kind", "")) for sweep in bundle.sweeps})
    sizes = [sweep.size for sweep in bundle.sweeps if sweep.size]
    title = bundle.question or bundle.name
    return (
        f"[{escape(title)}]({folder.name}/index.md)",
        escape(join_words(families)),
        ", ".join(sizes) or "one",
        f"{bundle.totals.runs:,}",
        escape(state_verdict(bundle)),
    )
