"""The page of a bundle, in Markdown: the answer, figures, numbers, what it does not show, and how to check it."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablate.addons.ledger.over_sizes import OverSizes
from ablate.addons.ledger.records import list_sections
from ablate.addons.ledger.schema import FILE, SWEEP, Bundle, PublishedSweep
from ablate.config.formatting import (
    count_noun,
    format_count,
    format_duration,
    format_setting,
    join_words,
)
from ablate.config.markdown import build_table, escape, format_code
from ablate.reports.fairness import describe_dirty
from ablate.reports.table import Section
from ablate.reports.usage import UsageUnit
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.search_edges import describe_edges, name_edges
from ablate.sweeps.verdict_summary import summarise_verdict
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import state_rule
from ablate.verdict.statements import format_estimate

_VERSIONS = {"Python": "ablate.python", "torch": "version.torch", "commit of Ablate": "mlflow.source.git.commit"}
_SETTINGS = ("model.", "data.", "optimizer.", "schedule.", "trainer.max_steps", "trainer.batch_size")


def find_question(text: str) -> str:
    """Return the first paragraph of the comment at the top of a sweep file; "" if there is none."""
    return next(iter(_read_paragraphs(text)), "")


def _read_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of the comment at the top of a sweep file, without its commands."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    words = ["" if line.startswith("#   ") else line[1:].strip() for line in lines]
    paragraphs = "\n".join(words).split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip()]


def render(
    bundle: Bundle,
    records: Mapping[str, SweepRecord],
    together: OverSizes | None,
    captions: Mapping[str, str],
    text: str,
) -> str:
    """Return the page. `captions`: file of a figure -> its caption. `text`: the sweep file, "" if there is none."""
    answer = "\n\n".join(map(escape, together.findings) if together else map(_answer, bundle.sweeps, records.values()))
    for size, record in records.items():
        edges = [text for text in map(escape, describe_edges(record)) if text not in answer]
        answer += "".join(f"\n\n{escape(size)}: {text}" if len(records) > 1 else f"\n\n{text}" for text in edges)
    parts = [
        f"# {escape(bundle.question or bundle.name)}",
        answer,
        *(
            f"![{escape(bundle.name)}: {name}]({name})" + (f"\n\n{escape(caption)}" if caption else "")
            for name, caption in captions.items()
        ),
        *(
            [f"## {escape(table.title)}\n\n{_tabulate(table.header, table.rows)}" for table in together.tables]
            if together
            else map(_tabulate_arms, bundle.sweeps, records.values())
        ),
        *_render_sections({size: list_sections(record) for size, record in records.items()}),
        "## What this does not show\n\n" + _list(map(escape, _list_limits(bundle, records, together, answer))),
        _quote_plan(text),
        _describe_runs(bundle, records, has_file=bool(text)),
        _describe_check(bundle, has_file=bool(text)),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def add_notes(page: str, notes: str) -> str:
    """Return the page with the author's words below its title."""
    if not notes.strip():
        return page
    title, _, rest = page.partition("\n\n")
    return f"{title}\n\n{notes.strip()}\n\n{rest}"


def _answer(sweep: PublishedSweep, record: SweepRecord) -> str:
    """Return the answer in one line, and then the whole verdict."""
    summary = summarise_verdict(record)
    text = escape(sweep.verdict.text)
    return text if sweep.verdict.text.startswith(summary) else f"**{escape(summary)}**\n\n{text}"


def _list_limits(
    bundle: Bundle, records: Mapping[str, SweepRecord], together: OverSizes | None, answer: str
) -> list[str]:
    """Return what the verdict is not about: other lengths and models; what counts as a failure; and the cautions of
    each sweep that the answer does not have."""
    lengths = dict.fromkeys(_describe_length(record) for record in records.values())
    limits = [
        f"Shown for these models, this data and this length of training alone: {join_words(filter(None, lengths))}.",
        *(together.caveats if together else dict.fromkeys(state_rule(r.trivial_loss) for r in records.values())),
    ]
    several = len(bundle.sweeps) > 1
    cautions = [
        f"{sweep.name}: {text}" if several else text
        for sweep, record in zip(bundle.sweeps, records.values(), strict=True)
        for text in (*sweep.cautions, *describe_dirty(record))
        if escape(text) not in answer
    ]
    return list(dict.fromkeys([*limits, *cautions]))


def _describe_length(record: SweepRecord) -> str:
    """Return the length of the longest run: updates, and tokens or images."""
    if not (runs := [run for run in record.list_runs() if run.step]):
        return ""
    unit, longest = UsageUnit.of(record), max(runs, key=lambda run: run.step)
    updates = f"{longest.step} updates"
    amount = longest.step * unit.per_update(longest)
    return updates if unit.noun == "updates" else f"{updates} ({format_count(amount)} {unit.noun})"


def _quote_plan(text: str) -> str:
    """Return what the sweep file says of itself, below its question."""
    paragraphs = _read_paragraphs(text)[1:]
    return (
        "## The words of the sweep file\n\n" + "\n\n".join(f"> {escape(words)}" for words in paragraphs)
        if paragraphs
        else ""
    )


def _tabulate_arms(sweep: PublishedSweep, record: SweepRecord) -> str:
    """Return the table of a sweep on fresh seeds, with the difference from the baseline, and beside the verdict the
    ends of the searched ranges at which an arm stands."""
    rows = []
    for arm, compared in sweep.verdict.arms.items():
        failures = compared["failures"]
        rows.append(
            [
                arm,
                _format(compared["estimate"]),
                f"{failures['diverged'] + failures['stuck']} of {failures['n']}" if failures else "-",
                _format((compared["versus"] or {}).get("difference"), sign=True),
                ", ".join(filter(None, [compared["kind"], name_edges(record, arm)])),
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
    return f"## {escape(title)}\n\n{_tabulate(header, rows)}"


def _render_sections(sections: Mapping[str, list[Section]]) -> list[str]:
    """Return the sections of one sweep, or those of several sizes, which are folded: there may be twenty tables."""
    if len(sections) == 1:
        return [_render_section(section, "## {}") for listed in sections.values() for section in listed]
    folded = [_fold_sections(size, listed) for size, listed in sections.items() if listed]
    return ["## Each size by itself", *folded] if folded else []


def _render_section(section: Section, title: str) -> str:
    table = _tabulate(section.table.header, section.table.rows) if section.table else ""
    sentences = map(escape, section.sentences)
    return "\n\n".join(part for part in (title.format(escape(section.title)), table, *sentences) if part)


def _fold_sections(size: str, sections: list[Section]) -> str:
    """Return the sections of a size, which a click opens. Their titles are bold: a heading would be in the contents of
    the page, and lead to folded text."""
    names = join_words(dict.fromkeys(section.title.partition(":")[0] for section in sections))
    texts = [_render_section(section, "**{}**") for section in sections]
    summary = f"<summary>{html.escape(f'{size}: {names}', quote=False)}</summary>"
    return "\n\n".join(['<details markdown="1">', summary, *texts, "</details>"])


def _tabulate(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of plain texts."""
    return build_table([escape(cell) for cell in header], ([escape(cell) for cell in row] for row in rows))


def _format(estimate: Mapping[str, Any] | None, sign: bool = False) -> str:
    return format_estimate(Estimate(**estimate), sign) if estimate else "-"


def _list(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _describe_runs(bundle: Bundle, records: Mapping[str, SweepRecord], has_file: bool) -> str:
    """Return what was run, where, of which versions, and what it took."""
    totals, first = bundle.totals, bundle.sweeps[0]
    units = join_words(dict.fromkeys(UsageUnit.of(record).noun for record in records.values()))
    amount = f"{count_noun(totals.runs, 'run')}, {format_count(totals.items)} {units}"
    settings = {
        path: value for path, value in first.settings.items() if path.startswith(_SETTINGS) and value is not None
    }
    shown = ", ".join(format_code(f"{path}={format_setting(value)}") for path, value in settings.items())
    corpora = [
        f"Corpus {format_code(str(corpus.settings.get('kind')))} "
        f"(SHA-256 {format_code(corpus.fingerprint[:16] + '...')}): {escape(corpus.source)}"
        for corpus in bundle.corpora
    ]
    of = f" ({first.name})" if len(bundle.sweeps) > 1 else ""
    versions = [f"{name} {_list_values(bundle, key)}" for name, key in _VERSIONS.items()]
    sweep_file = f"Sweep file: [{SWEEP}]({SWEEP}). " if has_file else ""
    hardware = _list_values(bundle, "ablate.hardware")
    return "## What was run\n\n" + _list(
        [
            f"{amount}, {format_duration(totals.seconds)} of training in sum, on {hardware}.",
            *corpora,
            f"{join_words(versions)}.",
            f"Settings of the first arm{of}: {shown}.",
            f"{sweep_file}Every seed and every curve: [{FILE}]({FILE}).",
        ]
    )


def _list_values(bundle: Bundle, key: str) -> str:
    """Return the values of a fact of the surroundings."""
    values = sorted({facts[key] for facts in bundle.surroundings if key in facts})
    return escape(join_words(value[:10] if key.endswith("commit") else value for value in values)) or "unknown"


def _describe_check(bundle: Bundle, has_file: bool) -> str:
    """Return the commands that check the bundle and, where its sweep file is enough for that, run the study."""
    trust = " --trust-plugins" if bundle.plugins else ""
    lines = [
        (f"ablate verify FOLDER{trust}", "trains one of the runs again; FOLDER is that of this page"),
        (f"ablate verify FOLDER --all{trust}", "all of them"),
    ]
    if has_file and not bundle.plugins:
        lines.append((_name_command(bundle), "the whole study anew, as your own"))
    width = max(len(command) for command, _ in lines)
    return "\n".join(
        ["## Check it", "", "```bash", *(f"{command:{width}}    # {why}" for command, why in lines), "```"]
    )


def _name_command(bundle: Bundle) -> str:
    """Return the command that runs the study."""
    if not bundle.over_sizes:
        return f"ablate sweep FOLDER/{SWEEP} --workers 2"
    sizes = ",".join(str(sweep.size) for sweep in bundle.sweeps)
    return f"ablate {bundle.over_sizes['kind']} FOLDER/{SWEEP} --sizes {sizes} --workers 2"
