"""The section of the report on the total compute of arms that start from other models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ablate.config.formatting import format_bytes
from ablate.reports.columns import word_column
from ablate.reports.report_data import ReportData
from ablate.reports.savings import Saving
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.reports.tokens_section import explain_censoring
from ablate.reports.tokens_to_baseline import TokensToBaseline
from ablate.verdict.intervals import Estimate


def tabulate_savings(report: ReportData) -> list[Section]:
    """Return the total compute of arms that start from other models; nothing if there are none."""
    savings, baseline = report.savings, report.record.spec.compared_with
    if not savings:
        return []
    title = f"Compute and memory, and the compute to reach the final result of {baseline}"
    tokens = {arm: one for arm, one in report.tokens_to_baseline.items() if arm in savings}
    sentences = _explain_savings(savings, tokens, report.record.spec.objective.title, baseline)
    return [Section(title, Table(_saving_columns(savings, tokens, savings.get(baseline))), list(sentences))]


def _saving_columns(
    savings: Mapping[str, Saving], tokens: Mapping[str, TokensToBaseline], baseline: Saving | None
) -> list[Column]:
    rows = list(savings.values())
    needed = [tokens.get(arm) for arm in savings]
    peaks = [s.peak_memory_bytes for s in rows]
    less = [_format_percent(1 - s.state_bytes / baseline.state_bytes) if baseline else NOTHING for s in rows]
    return [
        word_column("arm", savings),
        Column("FLOPs before", [f"{s.flops_before:.3g}" if s.flops_before else NOTHING for s in rows]),
        Column("FLOPs", [f"{s.flops:.3g}" for s in rows]),
        Column("states", [format_bytes(int(s.state_bytes)) for s in rows]),
        Column("saved", less),
        *([Column("measured", [format_bytes(int(n)) if n else NOTHING for n in peaks])] if any(peaks) else []),
        Column("reached", [f"{t.reached}/{t.seeds}" if t and t.seeds else NOTHING for t in needed]),
        Column("after updates", [f"{t.updates.mean:.0f}" if t and t.updates else NOTHING for t in needed]),
        Column("FLOPs saved", [_format_share(s.saved) if s.saved else NOTHING for s in rows]),
    ]


def _explain_savings(
    savings: Mapping[str, Saving], tokens: Mapping[str, TokensToBaseline], metric: str, baseline: str
) -> Iterable[str]:
    yield (
        "FLOPs: 6 for each trained weight and 2 for each frozen weight, times the tokens, without the embedding "
        "look-up; before: of the models that the arm starts from. States: 16 bytes for a trained parameter and 2 for "
        f"a frozen one. Reached: the number of seeds on which the arm reached the final {metric} of {baseline} on the "
        "same seed, the updates until then, and the share of the baseline's FLOPs that is saved by then, with the "
        "FLOPs before included: mean ± 95 % interval over these seeds, as at one look. The searches of the learning "
        "rate are not counted for any arm."
    )
    yield from explain_censoring(tokens, baseline)
    if any(s.flops_before for s in savings.values()):
        yield "All seeds of an arm start from the same model, so the interval does not include that model's variance."


def _format_percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share else NOTHING


def _format_share(share: Estimate) -> str:
    mean = f"{100 * share.mean:+.1f} %"
    return mean if share.half_width is None else f"{mean} ± {100 * share.half_width:.1f}"
