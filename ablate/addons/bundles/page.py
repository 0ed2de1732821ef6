"""The page of a bundle, in Markdown: its answer, the verdict in a table, a figure, what it does not show, and how to
repeat it. The tables of single runs are in the bundle itself."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ablate.addons.bundles.records import list_sections
from ablate.addons.bundles.schema import FILE, SWEEP, Bundle, PublishedSweep
from ablate.addons.scaling.over_sizes import OverSizes
from ablate.config.formatting import count_noun, format_count, format_duration, join_words
from ablate.config.markdown import escape, format_code
from ablate.reports.fairness import describe_dirty
from ablate.reports.markdown import show_section, show_table
from ablate.reports.section import Table
from ablate.reports.usage import UsageUnit
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.verdict_summary import summarise_verdict, tell_verdict
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import state_rule
from ablate.verdict.statements import format_estimate

_VERSIONS = {"Python": "ablate.python", "torch": "version.torch", "commit of Ablate": "mlflow.source.git.commit"}
_MOST_WORDS = 150
"""Most words of the whole verdict in sentences; a longer one is left to the table."""
_MOST_ARMS = 12
"""Most arms in the table of the verdict; more, such as the cells of a grid, are counted."""
_MOST_ROWS = 8
"""Most rows of another table, such as that of downstream tasks."""
_MOST_NAMED = 6


def find_question(text: str) -> str:
    """Return the first paragraph of the comment at the top of a sweep file, without its commands; "" if there is
    none."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    words = ["" if line.startswith("#   ") else line[1:].strip() for line in lines]
    return next((" ".join(part.split()) for part in "\n".join(words).split("\n\n") if part.strip()), "")


def render(
    bundle: Bundle,
    records: Mapping[str, SweepRecord],
    together: OverSizes | None,
    figures: Sequence[str],
    notes: str,
) -> str:
    """Return the page. `notes`: the author's words, which replace the answer that is made from the verdict; "" if there
    are none."""
    own = [section for record in records.values() for section in list_sections(record)] if len(records) == 1 else []
    sections = [one for one in own if one.table is None or len(one.table.rows) <= _MOST_ROWS]
    parts = [
        f"# {escape(bundle.question or bundle.name)}",
        notes.strip() or _answer(bundle, records, together),
        "## Verdict",
        _tabulate_verdict(bundle, records),
        _share_error(bundle),
        *(f"![{escape(bundle.name)}: {name}]({name})" for name in figures),
        *map(show_section, sections),
        "## What this does not show",
        "\n".join(f"- {escape(text)}" for text in _list_limits(bundle, records)),
        "## Repeat it",
        _list_commands(bundle),
        *_describe_runs(bundle, records),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _answer(bundle: Bundle, records: Mapping[str, SweepRecord], together: OverSizes | None) -> str:
    """Return the joint result of the sizes, or the verdict of each sweep: in one line, and then in full."""
    if together:
        return "\n\n".join(map(escape, together.findings))
    parts = []
    for sweep, record in zip(bundle.sweeps, records.values(), strict=True):
        summary, text = summarise_verdict(record), sweep.verdict.text
        if not text.startswith(summary):
            parts.append(f"**{escape(summary)}**")
        if len(text.split()) <= _MOST_WORDS or len(parts) == 0:
            parts.append(escape(text))
    return "\n\n".join(parts)


def _tabulate_verdict(bundle: Bundle, records: Mapping[str, SweepRecord]) -> str:
    """Return the verdict on each arm: for several sizes a column for each; for many arms how many have each verdict."""
    arms = list(dict.fromkeys(arm for sweep in bundle.sweeps for arm in sweep.verdict.arms))
    if len(arms) > _MOST_ARMS:
        return escape(state_verdict(bundle)) + "."
    if not arms:
        return "No arm has a fresh seed."
    metric = records[next(iter(records))].spec.objective.metric
    head = ["arm", *(sweep.size or sweep.name for sweep in bundle.sweeps)]
    if len(bundle.sweeps) == 1:
        head = ["arm", f"{metric}, mean ± 95 %", "failed", "less the baseline", "verdict"]
    rows = []
    for arm in arms:
        cells = [
            _describe_arm(sweep, record, arm) for sweep, record in zip(bundle.sweeps, records.values(), strict=True)
        ]
        if len(cells) > 1:
            row = [
                _join(difference if difference != "-" else mean, word, failed)
                for mean, failed, difference, word in cells
            ]
        else:
            row = list(cells[0])
        rows.append([arm, *row])
    several = f"{escape(metric)} less that of the baseline, ± 95 %; of the baseline the mean.\n\n"
    return (several if len(bundle.sweeps) > 1 else "") + show_table(Table.of_rows(head, rows))


def _describe_arm(sweep: PublishedSweep, record: SweepRecord, arm: str) -> tuple[str, str, str, str]:
    """Return the mean of an arm, its failures, its difference from the baseline, and the verdict with the ends of the
    searched ranges at which it stands."""
    if (compared := sweep.verdict.arms.get(arm)) is None:
        return "-", "", "-", ""
    failures = compared["failures"]
    failed = f"{failures['diverged'] + failures['stuck']} of {failures['n']}" if failures else "-"
    word = tell_verdict(record, arm, compare_record(record))
    difference = (compared["versus"] or {}).get("difference")
    return _format(compared["estimate"]), failed, _format(difference, sign=True), word


def _join(value: str, word: str, failed: str) -> str:
    """Return a cell of several sizes: failures are named where there are some."""
    some = "" if failed.startswith(("0 ", "-")) or not failed else f"{failed} failed"
    return ", ".join(filter(None, [value, re.split(r",| with ", word)[0], some]))


def _share_error(bundle: Bundle) -> str:
    families = [compared["family"] for sweep in bundle.sweeps for compared in sweep.verdict.arms.values()]
    over_sizes, own = bundle.over_sizes or {}, max(filter(None, families), default=0)
    together = over_sizes.get("comparisons") or own
    count = together if over_sizes.get("kind") == "transfer" else own
    text = f"All comparisons ({count}) and every look at the data share one error of 5 %." if count else ""
    if together > count > 0:
        text += f" In the figure they share it with the trends over the sizes ({together}): its intervals are wider."
    return text


def state_verdict(bundle: Bundle) -> str:
    """Return the arms of each kind of verdict, for several sizes at the largest or, for learning rates, over all."""
    if bundle.over_sizes and bundle.over_sizes["kind"] == "transfer":
        words = {arm: one["verdict"] for arm, one in bundle.over_sizes["arms"].items()}
    else:
        verdict = bundle.sweeps[-1].verdict
        words = {arm: one["kind"] for arm, one in verdict.arms.items() if one["kind"] not in ("baseline", "cell")}
        words |= {contrast: effect["kind"] for contrast, effect in verdict.effects.items()}
    by_word: dict[str, list[str]] = {}
    for arm, word in words.items():
        by_word.setdefault(word, []).append(arm)
    return "; ".join(f"{word}: {_name_arms(arms)}" for word, arms in by_word.items()) or "no fresh seeds"


def _name_arms(arms: list[str]) -> str:
    """Return the arms in words; for many, such as the cells of a grid, how many there are of each."""
    counts = Counter(arm.partition(" ")[0] for arm in arms)
    if len(arms) <= _MOST_NAMED or len(counts) == len(arms):
        return join_words(arms)
    return join_words([f"{arm} at {count_noun(count, 'setting')}" for arm, count in counts.items()])


def _list_limits(bundle: Bundle, records: Mapping[str, SweepRecord]) -> list[str]:
    """Return the limits of the verdict: other lengths and models; what counts as a failure; and the cautions of each
    sweep."""
    lengths = dict.fromkeys(_describe_length(record) for record in records.values())
    several = len(bundle.sweeps) > 1
    limits = [
        f"Shown for these models, this data and this length of training alone: {join_words(filter(None, lengths))}.",
        *(state_rule(record.trivial_loss) for record in records.values()),
        *(
            f"{sweep.name}: {text}" if several else text
            for sweep, record in zip(bundle.sweeps, records.values(), strict=True)
            for text in (*sweep.cautions, *describe_dirty(record))
        ),
    ]
    return list(dict.fromkeys(limits))


def _describe_length(record: SweepRecord) -> str:
    """Return the length of the longest run: updates, and tokens or images."""
    if not (runs := [run for run in record.runs if run.step]):
        return ""
    unit, longest = UsageUnit.of(record), max(runs, key=lambda run: run.step)
    updates = f"{longest.step} updates"
    amount = longest.step * unit.per_update(longest)
    return updates if unit.noun == "updates" else f"{updates} ({format_count(amount)} {unit.noun})"


def _list_commands(bundle: Bundle) -> str:
    """Return the commands that check the bundle and, where its sweep file is enough for that, run the study."""
    trust = " --trust-plugins" if bundle.plugins else ""
    lines = [
        (f"ablate verify FOLDER{trust}", "trains one of the runs again; FOLDER is that of this page"),
        (f"ablate verify FOLDER --all{trust}", "all of them"),
    ]
    if SWEEP in bundle.files and not bundle.plugins:
        command = f"ablate sweep FOLDER/{SWEEP} --workers 2"
        if bundle.over_sizes:
            sizes = ",".join(str(sweep.size) for sweep in bundle.sweeps)
            command = f"ablate sweep FOLDER/{SWEEP} --size {sizes} --workers 2"
        lines.append((command, "the whole study anew, as your own"))
    width = max(len(command) for command, _ in lines)
    return "\n".join(["```bash", *(f"{command:{width}}    # {why}" for command, why in lines), "```"])


def _describe_runs(bundle: Bundle, records: Mapping[str, SweepRecord]) -> list[str]:
    """Return the origin of the results: the runs, machines, versions and data, and the file that has all of it."""
    totals = bundle.totals
    units = join_words(dict.fromkeys(UsageUnit.of(record).noun for record in records.values()))
    amount = f"{count_noun(totals.runs, 'run')}, {format_count(totals.items)} {units}"
    versions = [f"{name} {_list_values(bundle, key)}" for name, key in _VERSIONS.items()]
    corpora = [
        f" Corpus {format_code(str(corpus.settings.get('kind')))} "
        f"(SHA-256 {format_code(corpus.fingerprint[:16] + '...')}): {escape(corpus.source)}"
        for corpus in bundle.corpora
    ]
    took = f"{format_duration(totals.seconds)} of training in sum, on {_list_values(bundle, 'ablate.hardware')}"
    plan = f", the plan in [{SWEEP}]({SWEEP})" if SWEEP in bundle.files else ""
    return [
        f"{amount}, {took}; {join_words(versions)}.{''.join(corpora)}",
        f"All settings, seeds and curves are in [{FILE}]({FILE}), JSON in gzip{plan}.",
    ]


def _list_values(bundle: Bundle, key: str) -> str:
    """Return the values of a fact of the surroundings."""
    values = sorted({facts[key] for facts in bundle.surroundings if key in facts})
    return escape(join_words(value[:10] if key.endswith("commit") else value for value in values)) or "unknown"


def _format(estimate: Mapping[str, Any] | None, sign: bool = False) -> str:
    return format_estimate(Estimate(**estimate), sign) if estimate else "-"
