"""What the tables of the report hold and the sentences below them; `tables` and `page` render them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ablate.config.formatting import (
    count_noun,
    format_bytes,
    format_count,
    format_duration,
    format_number,
    format_setting,
    join_words,
)
from ablate.reports import cost, fairness, findings
from ablate.reports.cells import COUNTS, NOTHING, SETTINGS, Cells, Column, Section
from ablate.reports.contents import Contents
from ablate.reports.downstream import tabulate
from ablate.reports.importance import MINIMUM, finished
from ablate.reports.labels import searched, short_names
from ablate.reports.sensitivity import MINIMUM as MINIMUM_RATES
from ablate.reports.sensitivity import Sensitivity
from ablate.sweeps.records import SweepRecord
from ablate.verdict.confirmation import format_estimate
from ablate.verdict.intervals import Estimate
from ablate.verdict.outcomes import FINISHED, STATUSES, TrialRecord

RARE = ("pruned", "diverged", "failed")


def confirmed(report: Contents) -> list[Section]:
    """The best settings of each arm on fresh seeds; nothing where none are confirmed."""
    record, found = report.record, report.confirmed
    if not found:
        return []
    rows = list(found.values())
    differences = [c.difference for c in rows]
    columns = [
        _words("arm", found),
        Column("n", [f"{c.estimate.n if c.estimate else 0}/{c.target}" for c in rows]),
        Column(record.spec.objective.metric, [format_estimate(c.estimate) if c.estimate else NOTHING for c in rows]),
        Column("diverged", [str(c.diverged) for c in rows]),
        Column(
            f"less {record.spec.compared_with}",
            [format_estimate(d.estimate, sign=True) if d else NOTHING for d in differences],
        ),
        Column("p (Holm)", [f"{d.adjusted_p:.2g}" if d and d.adjusted_p is not None else NOTHING for d in differences]),
        *_settings(record, [record.best(arm) for arm in found]),
    ]
    return [Section("The best settings of each arm on fresh seeds: mean +- 95 % interval", Cells(columns))]


def published(report: Contents) -> list[Section]:
    """The figures of papers beside ours, one section per source."""
    baseline = report.record.spec.compared_with
    sections = []
    for source in report.published:
        rows = source.rows
        differences = [format_estimate(r.difference, sign=True) if r.difference else NOTHING for r in rows]
        columns = [
            _words("arm", [r.arm for r in rows]),
            _words("which", [r.kind or NOTHING for r in rows]),
            Column("n", [str(r.ours.n) if r.ours else NOTHING for r in rows]),
            Column("ours", [format_estimate(r.ours) if r.ours else NOTHING for r in rows]),
            Column(f"less {baseline}", differences),
            Column("published", [format_number(r.published) for r in rows]),
            Column(f"less {baseline}", [_signed(r.published_difference) for r in rows]),
        ]
        sections.append(Section(f"Published: {source.source} ({source.metric})", Cells(columns)))
        if source.tokenizers:
            theirs, ours = source.tokenizers
            sections[-1].said.append(
                f"Theirs is measured in tokens of {theirs}, ours in those of {ours}: "
                f"unless that is the same tokenizer, {source.metric} cannot be compared."
            )
    if sections:
        sections[-1].said.append("Other data, sizes or budgets may be behind these: they enter no comparison of ours.")
        sections[-1].said.extend([report.scale] if report.scale else [])
    return sections


def downstream(report: Contents) -> list[Section]:
    """The scores on downstream tasks; nothing where no run was evaluated."""
    return tabulate(report.downstream, report.record.spec.compared_with)


def search(report: Contents) -> list[Section]:
    """The best trial of each arm."""
    record, metric = report.record, report.record.spec.objective.metric
    best = {arm: record.best(arm) for arm in record.trials}
    others = list(dict.fromkeys(m for trial in best.values() if trial for m in sorted(trial.metrics) if m != metric))
    counts = {arm: record.counts(arm) for arm in record.trials}
    columns = [
        _words("arm", best),
        Column("finished", [f"{findings.finished_of(record, arm)}/{record.target(arm)}" for arm in best]),
        Column(metric, [format_number(trial.value) if trial else NOTHING for trial in best.values()]),
        *(
            Column(m, [format_number(trial.metrics.get(m)) if trial else NOTHING for trial in best.values()])
            for m in others
        ),
        Column("time", [format_duration(findings.seconds_of(record, arm)) for arm in best]),
        *_settings(record, best.values()),
        *(
            Column(status, [str(c[status]) for c in counts.values()], merge=COUNTS)
            for status in RARE
            if any(c[status] for c in counts.values())
        ),
    ]
    total = record.counts()
    clean = any(total[s] for s in FINISHED) and not any(total[s] for s in RARE)
    said = "time: the median of the completed trials." + (" No trial was pruned, diverged or failed." if clean else "")
    title = "The search, which flatters its best" if report.confirmed else "The best trial of each arm"
    return [Section(title, Cells(columns), [said])]


def costs(report: Contents) -> list[Section]:
    """What each arm took."""
    search, fresh = report.costs, report.confirmation_costs
    noun = report.measure.noun
    columns = [_words("arm", search), *_cost_columns("", noun, search.values())]
    if report.confirmed:
        columns += _cost_columns("fresh ", noun, [fresh[arm] for arm in search])
    title = f"What each arm took: runs, {noun} and time" + ("; fresh: to confirm it" if report.confirmed else "")
    return [Section(title, Cells(columns))]


def savings(report: Contents) -> list[Section]:
    """What arms that start from other models take in all; nothing where none does."""
    found, baseline = report.savings, report.record.spec.compared_with
    if not found:
        return []
    rows = list(found.values())
    whole = found.get(baseline)
    measured = [s.peak_memory_bytes for s in rows]
    columns = [
        _words("arm", found),
        Column("FLOPs before", [f"{s.flops_before:.3g}" if s.flops_before else NOTHING for s in rows]),
        Column("FLOPs", [f"{s.flops:.3g}" for s in rows]),
        Column("states", [format_bytes(int(s.state_bytes)) for s in rows]),
        Column("less", [_percent(1 - s.state_bytes / whole.state_bytes) if whole else NOTHING for s in rows]),
        *([Column("measured", [format_bytes(int(n)) if n else NOTHING for n in measured])] if any(measured) else []),
        Column("reached", [f"{s.reached}/{s.seeds}" if s.seeds else NOTHING for s in rows]),
        Column("after updates", [f"{s.updates.mean:.0f}" if s.updates else NOTHING for s in rows]),
        Column("FLOPs saved", [_share(s.saved) if s.saved else NOTHING for s in rows]),
    ]
    said = [
        "FLOPs: 6 for each weight that is trained and 2 for each frozen one, times the tokens, a token's look-up left "
        "out; before: of the models that the arm starts from. States: 16 bytes for a trained parameter and 2 for a "
        f"frozen one. Reached: on how many seeds it came to the final {report.record.spec.objective.metric} of "
        f"{baseline} on the same seed, after how many updates, and the share of its FLOPs that are saved until then, "
        "with the FLOPs before: mean +- 95 % interval. The searches of the learning rate are not counted, for no arm."
    ]
    if any(s.saved is None and s.seeds for s in rows):
        said.append("Where an arm does not get there on every seed, no mean is given: it would leave the worst out.")
    if early := [f"{arm} {s.at_first} of {s.seeds}" for arm, s in found.items() if s.at_first]:
        said.append(
            f"There at the first validation: {join_words(early)}. They may have been before, and their interval, which "
            "knows the validations alone, is too narrow."
        )
    if any(s.flops_before for s in rows):
        said.append("All seeds of an arm start from the same model: the interval does not cover the luck of that one.")
    return [Section(f"Compute and memory, and what it takes to be where {baseline} ends", Cells(columns), said)]


def sensitivities(report: Contents) -> list[Section]:
    """How much the learning rate matters to each arm; nothing where that cannot be told of any."""
    found = report.sensitivities
    if not any(found.values()):
        return []
    columns = [
        _words("arm", found),
        Column("sensitivity", [format_number(s.value) if s else NOTHING for s in found.values()]),
        Column("n trials", [str(s.n) if s else NOTHING for s in found.values()]),
        Column("diverged", [str(s.diverged) if s else NOTHING for s in found.values()]),
        Column("pruned", [str(s.pruned) if s else NOTHING for s in found.values()]),
        Column(
            "range", [f"{format_setting(s.low)} to {format_setting(s.high)}" if s else NOTHING for s in found.values()]
        ),
    ]
    return [Section("Learning-rate sensitivity (Wortsman et al. 2023)", Cells(columns), list(_of_sensitivity(found)))]


def importances(report: Contents) -> list[Section]:
    """How much each searched parameter matters; nothing where nothing is searched."""
    record, paths = report.record, searched(report.record.spec)
    title = "Importance of each searched parameter (fANOVA; shares of an arm sum to 1)"
    needed = f"it takes {MINIMUM} finished trials of an arm that differ."
    if not paths:
        return []
    if not any(report.importance.values()):
        return [Section("", said=[f"No importance yet: {needed}"])]
    columns = [
        _words("arm", record.trials),
        Column("n trials", [str(finished(record, arm)) for arm in record.trials]),
        *(
            Column(name, [format_number(report.importance[arm].get(path), 2) for arm in record.trials])
            for path, name in short_names(paths).items()
        ),
    ]
    said = []
    if few := [arm for arm in record.trials if not report.importance[arm] and record.spec.space(arm)]:
        said.append(f"None for {join_words(few)}: {needed}")
    if any(len(values) > 1 for values in report.importance.values()):
        said.append("With few trials this is a rough order, not a measurement.")
    return [Section(title, Cells(columns), said)]


def comparability(report: Contents) -> list[Section]:
    """In what the arms and their runs differ besides what is compared."""
    sections, found = [], report.confounds
    if found is not None:
        title = f"Besides {join_words(found.factor) or 'what is compared'} the arms differ in"
        if found.found:
            rows = [
                (c.path, value, join_words(a for a, v in c.values.items() if v == value), "yes" if c.declared else "no")
                for c in found.found
                for value in dict.fromkeys(c.values.values())
            ]
            sections.append(Section(title, _of_words(("setting", "value", "arms", "declared"), rows)))
        else:
            told = "nothing." if not found.problem else f"It cannot be told: {found.problem}"
            sections.append(Section(title, said=[told]))
    notes = list(fairness.surrounding_notes(report.record))
    if report.surroundings:
        lines = [
            (s.key, value, join_words(f"{arm} {runs}" for arm, runs in arms.items()))
            for s in report.surroundings
            for value, arms in s.runs.items()
        ]
        sections.append(Section("The runs differ in", _of_words(("fact", "value", "runs"), lines), notes))
    elif notes:
        sections.append(Section("Where and how the runs were made", said=notes))
    return sections


def trials(report: Contents) -> list[Section]:
    """Every trial, those of an arm best first, and why some diverged or failed."""
    record, sign = report.record, findings.sign_of(report.record)
    ordered = [
        t
        for found in record.trials.values()
        for t in sorted(found, key=lambda t: (STATUSES.index(t.status), sign * (t.value or 0.0), t.number))
    ]
    columns = [
        _words("arm", [t.arm for t in ordered]),
        Column("trial", [str(t.number) for t in ordered]),
        _words("status", [t.status for t in ordered]),
        Column(record.spec.objective.metric, [format_number(t.value) for t in ordered]),
        *_settings(record, ordered),
        Column("updates", [str(t.step) for t in ordered]),
        Column("time", [format_duration(t.seconds) for t in ordered]),
    ]
    best = [record.best(arm) for arm in record.trials]
    strong = frozenset(i for i, t in enumerate(ordered) if any(t is b for b in best))
    return [Section(f"All {count_noun(len(ordered), 'trial')}", Cells(columns, strong), list(_reasons(ordered)))]


# ---------------------------------------------------------------------------------------------------- parts


def _words(name: str, cells: Iterable[str]) -> Column:
    return Column(name, list(cells), words=True)


def _of_words(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Cells:
    return Cells([_words(name, [row[i] for row in rows]) for i, name in enumerate(header)])


def _settings(record: SweepRecord, trials: Iterable[TrialRecord | None]) -> list[Column]:
    """A column per searched parameter."""
    params = [trial.params if trial else {} for trial in trials]
    names = short_names(searched(record.spec))
    return [
        Column(name, [format_setting(p[path]) if path in p else NOTHING for p in params], merge=SETTINGS)
        for path, name in names.items()
    ]


def _cost_columns(prefix: str, noun: str, found: Iterable[cost.Cost]) -> list[Column]:
    costs = list(found)
    return [
        Column(f"{prefix}runs", [str(c.trials) for c in costs]),
        Column(f"{prefix}{noun}", [format_count(c.items) for c in costs]),
        Column(f"{prefix}time", [format_duration(c.seconds) for c in costs]),
    ]


def _of_sensitivity(found: dict[str, Sensitivity | None]) -> Iterable[str]:
    known = {arm: s for arm, s in found.items() if s}
    yield (
        "The mean, over log learning rates in the searched range, of the loss (at most the initial one) less the "
        "lowest, in nats: a lower value means that less tuning is needed."
    )
    if any(s.diverged or s.pruned for s in known.values()):
        yield "A diverged trial counts with the initial loss, a pruned one with the last that it reported."
    if hulls := [arm for arm, s in known.items() if s.envelope]:
        yield f"Of {join_words(hulls)}, where more is searched, it is that of the lower convex hull."
    if len({(s.low, s.high) for s in known.values()}) > 1:
        yield "The ranges differ, so that these values cannot be compared."
    if none := [arm for arm, s in found.items() if not s]:
        yield f"None for {join_words(none)}: it takes {MINIMUM_RATES} finished trials at positive learning rates."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share else NOTHING


def _share(found: Estimate) -> str:
    mean = f"{100 * found.mean:+.1f} %"
    return mean if found.half_width is None else f"{mean} +- {100 * found.half_width:.1f}"


def _signed(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.4f}"


def _reasons(trials: Iterable[TrialRecord]) -> Iterable[str]:
    """Why trials diverged or failed, those of one arm and one reason together."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for t in trials:
        if t.reason and t.status in ("diverged", "failed"):
            groups.setdefault((t.arm, t.status, t.reason), []).append(t.number)
    for (arm, status, reason), numbers in groups.items():
        yield f"{arm} {join_words(map(str, sorted(numbers)))} {status}: {reason}"
