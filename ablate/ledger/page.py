"""The page of a bundle, in Markdown: the answer, figures, numbers, what it does not show, and how to check it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ablate.config.formatting import (
    count_noun,
    format_count,
    format_duration,
    format_setting,
    join_words,
)
from ablate.config.markdown import build_table
from ablate.ledger.over_sizes import OverSizes
from ablate.ledger.schema import SWEEP, Bundle, PublishedSweep
from ablate.reports.table import Section
from ablate.verdict.intervals import Estimate
from ablate.verdict.statements import format_estimate

_SETTINGS = ("model.", "data.", "optimizer.", "schedule.", "trainer.max_steps", "trainer.batch_size")


def find_question(text: str) -> str:
    """Return the first paragraph of the comment at the top of a sweep file; "" if there is none."""
    words = []
    for line in text.splitlines():
        if not line.startswith("# "):
            break
        words.append(line.removeprefix("# ").strip())
    return " ".join(words)


def render(bundle: Bundle, together: OverSizes | None, captions: Mapping[str, str], sections: Iterable[Section]) -> str:
    """Return the page. `captions`: file of a figure -> its caption. `sections`: of the report, below the verdict."""
    answers = together.findings if together else [sweep.verdict.text for sweep in bundle.sweeps]
    parts = [
        f"# {bundle.question or bundle.name}",
        "\n\n".join(answers),
        *(
            f"![{caption or bundle.name}]({name})" + (f"\n\n{caption}" if caption else "")
            for name, caption in captions.items()
        ),
        *(
            [f"## {table.title}\n\n{build_table(table.header, table.rows)}" for table in together.tables]
            if together
            else []
        ),
        *([] if together else [_tabulate_arms(sweep) for sweep in bundle.sweeps]),
        *map(_render_section, sections),
        "## What this does not show\n\n"
        + _list(dict.fromkeys([*(together.caveats if together else []), *_list_cautions(bundle)])),
        _describe_runs(bundle),
        _describe_check(bundle),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def add_notes(page: str, notes: str) -> str:
    """Return the page with the author's words below its title."""
    title, _, rest = page.partition("\n\n")
    return f"{title}\n\n{notes.strip()}\n\n{rest}"


def _list_cautions(bundle: Bundle) -> list[str]:
    several = len(bundle.sweeps) > 1
    return [f"{sweep.name}: {text}" if several else text for sweep in bundle.sweeps for text in sweep.cautions]


def _tabulate_arms(sweep: PublishedSweep) -> str:
    """Return the table of a sweep on fresh seeds, with the difference from the baseline."""
    rows = []
    for arm, compared in sweep.verdict.arms.items():
        failures = compared["failures"]
        rows.append(
            [
                arm,
                _format(compared["estimate"]),
                f"{failures['diverged'] + failures['stuck']} of {failures['n']}" if failures else "-",
                _format((compared["versus"] or {}).get("difference"), sign=True),
                compared["kind"],
            ]
        )
    if not rows:
        return ""
    metric = sweep.spec.get("objective", {}).get("metric", "objective")
    title = sweep.name if sweep.size else "Fresh seeds"
    header = [
        "arm",
        f"{metric}, mean of the seeds that trained ± 95 %",
        "failed",
        "difference from the baseline",
        "verdict",
    ]
    return f"## {title}\n\n{build_table(header, rows)}"


def _render_section(section: Section) -> str:
    table = build_table(section.table.header, section.table.rows) if section.table else ""
    return "\n\n".join(part for part in (f"## {section.title}", table, *section.sentences) if part)


def _format(estimate: Mapping[str, Any] | None, sign: bool = False) -> str:
    return format_estimate(Estimate(**estimate), sign) if estimate else "-"


def _list(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts) or "- See the limits of the runs below."


def _describe_runs(bundle: Bundle) -> str:
    """Return what was run, where, and what it took."""
    totals = bundle.totals
    amount = f"{count_noun(totals.runs, 'run')}, {format_count(totals.items)} tokens or images"
    hardware = join_words(sorted({facts.get("ablate.hardware", "unknown") for facts in bundle.surroundings}))
    first = bundle.sweeps[0]
    settings = {
        path: value for path, value in first.settings.items() if path.startswith(_SETTINGS) and value is not None
    }
    shown = ", ".join(f"`{path}={format_setting(value)}`" for path, value in settings.items())
    corpora = [
        f"Corpus `{corpus.settings.get('kind')}` (SHA-256 `{corpus.fingerprint[:16]}...`): {corpus.source}"
        for corpus in bundle.corpora
    ]
    of = f" ({first.name})" if len(bundle.sweeps) > 1 else ""
    return "## What was run\n\n" + _list(
        [
            f"{amount}, {format_duration(totals.seconds)} of training in sum, on {hardware}.",
            *corpora,
            f"Settings of the first arm{of}: {shown}.",
            "Sweep file, every seed and every curve: [bundle.json](bundle.json).",
        ]
    )


def _describe_check(bundle: Bundle) -> str:
    trust = " --trust-plugins" if bundle.plugins else ""
    lines = [
        (f"ablate verify FOLDER{trust}", "trains one of the runs again; FOLDER is that of this page"),
        (f"ablate verify FOLDER --all{trust}", "all of them"),
        *((command, "the whole study anew, as your own") for command in _list_commands(bundle)),
    ]
    width = max(len(command) for command, _ in lines)
    return "\n".join(
        ["## Check it", "", "```bash", *(f"{command:{width}}    # {why}" for command, why in lines), "```"]
    )


def _list_commands(bundle: Bundle) -> list[str]:
    """Return the command that runs the study; none where its sweep file alone is not enough."""
    if SWEEP not in bundle.files or bundle.plugins:
        return []
    verb, sizes = "sweep", ""
    if bundle.over_sizes:
        verb = bundle.over_sizes["kind"]
        sizes = f" --sizes {','.join(str(sweep.size) for sweep in bundle.sweeps)}"
    return [f"ablate {verb} FOLDER/{SWEEP}{sizes} --workers 2"]
