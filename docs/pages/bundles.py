"""results/published.md: the table of all bundles in docs/results/, and the schema of a bundle."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from ablate.addons.ledger.bundles import read_bundle
from ablate.addons.ledger.checks import read_checks
from ablate.addons.ledger.schema import FILE, Bundle
from ablate.config.formatting import count_noun, join_words
from ablate.config.markdown import build_table, escape

MOST_NAMED = 6
_HEAD = """\
# Published studies

Each is a bundle: every seed, every curve, the settings, the verdict and its error control, from which
[anybody can check it and run it again](../how-to/publish.md). The table is written from the bundles by `make docs`;
"reproduced by" counts the records of those who trained runs of a bundle again. Verdicts are
[those of the report](../explanation/verdict.md), of several sizes at the largest; of learning rates over sizes they
say whether the best rate of the smallest [holds at the largest](../how-to/transfer.md), costs loss there, or neither is
shown.

"""
_NONE = "There are none yet.\n"


def build_page(docs: Path) -> str:
    """Return the page, Markdown. Raises AblateError for a bundle that cannot be read."""
    folders = sorted(file.parent for file in (docs / "results").glob(f"*/{FILE}"))
    rows = [_describe(folder) for folder in folders]
    if not rows:
        return _HEAD + _NONE
    header = ("question", "family", "sizes", "runs", "verdict", "reproduced by")
    return f'{_HEAD}<div class="filtered" markdown>\n\n{build_table(header, rows)}\n</div>\n'


def build_schema() -> str:
    """Return the JSON schema of bundle.json."""
    return json.dumps(Bundle.model_json_schema(), indent=1) + "\n"


def _describe(folder: Path) -> tuple[str, ...]:
    bundle, checks = read_bundle(folder), read_checks(folder)
    families = sorted({str(sweep.settings.get("model.kind", "")) for sweep in bundle.sweeps})
    sizes = [sweep.size for sweep in bundle.sweeps if sweep.size]
    reproduced = str(checks.reproduced)
    if checks.cells:
        reproduced += f" ({count_noun(checks.cells, 'run')})"
    if checks.refuted:
        reproduced += f"; not by {checks.refuted}"
    title = bundle.question or bundle.name
    return (
        f"[{escape(title)}]({folder.name}/index.md)",
        escape(join_words(families)),
        ", ".join(sizes) or "one",
        f"{bundle.totals.runs:,}",
        escape(_state_verdict(bundle)),
        reproduced,
    )


def _state_verdict(bundle: Bundle) -> str:
    """Return the arms of each kind of verdict; over the sizes, if there are several."""
    if bundle.over_sizes and bundle.over_sizes["kind"] == "transfer":
        words = {arm: one["verdict"] for arm, one in bundle.over_sizes["arms"].items()}
    else:
        last = bundle.sweeps[-1]
        words = {arm: one["kind"] for arm, one in last.verdict.arms.items() if one["kind"] not in ("baseline", "cell")}
        words |= {contrast: effect["kind"] for contrast, effect in last.verdict.effects.items()}
    by_word: dict[str, list[str]] = {}
    for arm, word in words.items():
        by_word.setdefault(word, []).append(arm)
    return "; ".join(f"{word}: {_name(arms)}" for word, arms in by_word.items()) or "no fresh seeds"


def _name(arms: list[str]) -> str:
    """Return the arms in words; of many, as the cells of a grid, how many there are of each."""
    counts = Counter(arm.partition(" ")[0] for arm in arms)
    if len(arms) <= MOST_NAMED or len(counts) == len(arms):
        return join_words(arms)
    return join_words([f"{arm} at {count_noun(count, 'setting')}" for arm, count in counts.items()])
