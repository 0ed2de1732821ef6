"""The section of the report on the training that each arm needs to reach the final objective of the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ablate.config.formatting import count_noun, format_number, format_uncertain, join_words
from ablate.reports.columns import word_column
from ablate.reports.report_data import ReportData
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.reports.tokens_to_baseline import TokensToBaseline
from ablate.verdict.intervals import Estimate


def tabulate_tokens(report: ReportData) -> list[Section]:
    """Return how soon each arm reaches the final objective of the baseline on fresh seeds; nothing before there are
    seeds of both."""
    tokens = {arm: one for arm, one in report.tokens_to_baseline.items() if one.fresh and (one.seeds or one.left_out)}
    if not tokens:
        return []
    baseline, unit = report.record.spec.compared_with, report.usage_unit.noun
    metric = report.record.spec.objective.title
    title = f"{unit.capitalize()} to reach the final {metric} of {baseline}"
    if not any(one.seeds for one in tokens.values()):
        text = f"{baseline} trained on none of the seeds, so there is no final {metric} to reach."
        return [Section(title, sentences=[text, *explain_censoring(tokens, baseline)])]
    if max(one.validations for one in tokens.values()) == 1:
        text = (
            f"A training has one validation, so it is not known how soon it reaches the final {metric} of {baseline}."
        )
        return [Section(title, sentences=[text])]
    rows = list(tokens.values())
    columns = [
        word_column("arm", tokens),
        Column("n", [str(one.seeds) for one in rows]),
        Column("failed", [f"{one.failed + one.left_out_failed}/{one.seeds + one.left_out}" for one in rows]),
        Column("reached", [f"{one.reached}/{one.seeds}" if one.seeds else NOTHING for one in rows]),
        Column("at first validation", [str(one.at_first) for one in rows]),
        Column(f"share of {unit}", [_format_share(one.share) for one in rows]),
        Column("updates", [format_number(one.updates.mean, 0) if one.updates else NOTHING for one in rows]),
    ]
    return [Section(title, Table(columns), list(_explain(tokens, metric, baseline, unit)))]


def explain_censoring(tokens: Mapping[str, TokensToBaseline], baseline: str) -> Iterator[str]:
    """Yield what is not known of the training that `tokens` need, and of which arms."""
    if missing := [
        f"{arm} on {one.seeds - one.reached} of {one.seeds}" + (f" ({one.failed} of them failed)" if one.failed else "")
        for arm, one in tokens.items()
        if one.reached < one.seeds
    ]:
        yield f"Not reached: {join_words(missing)}. No mean is given there: it would omit the worst seeds."
    if left_out := max((one.left_out for one in tokens.values()), default=0):
        text = f"Left out: {count_noun(left_out, 'seed')} on which {baseline} failed and has no final result"
        on_these = [f"{arm} on {one.left_out_failed} of {one.left_out}" for arm, one in tokens.items() if one.left_out]
        yield f"{text}. Of these, failed too: {join_words(on_these)}."
    if early := [f"{arm} {one.at_first} of {one.seeds}" for arm, one in tokens.items() if one.at_first]:
        yield (
            f"Reached at the first validation: {join_words(early)}. They may have reached it earlier, and their "
            "interval, which is based on validations only, is too narrow."
        )


def _explain(tokens: Mapping[str, TokensToBaseline], metric: str, baseline: str, unit: str) -> Iterator[str]:
    counts = sorted({one.validations for one in tokens.values() if one.validations})
    count = " to ".join(dict.fromkeys(str(end) for end in (*counts[:1], *counts[-1:])))
    between = f", of which a training has {count}" if counts else ""
    yield (
        f"The {unit} after which the {metric} of the arm first reaches the final one of {baseline} on the same seed, "
        f"as a share of all {unit} of {baseline}: mean ± 95 % interval over the n seeds, as at one look. It is "
        f"interpolated between validations{between}. The interval describes these seeds: it is not one of the "
        "comparisons that share the error of 5 %, and no verdict follows from it."
    )
    yield (
        "The first time counts, which may be by chance where the curve fluctuates. The learning rate of the arm has "
        "not finished its schedule there: a training planned to be that short may need more or less."
    )
    yield from explain_censoring(tokens, baseline)
    if equal := [arm for arm, one in tokens.items() if one.share and one.share.n > 1 and one.share.interval is None]:
        yield f"{join_words(equal)}: equal on every seed, which gives no interval."


def _format_share(share: Estimate | None) -> str:
    if share is None:
        return NOTHING
    half_width = None if share.half_width is None else 100 * share.half_width
    return f"{format_uncertain(100 * share.mean, half_width, bounds=(0.0, math.inf))} %"
