"""The section of the report on the total compute of arms that start from other models."""

from __future__ import annotations

from collections.abc import Iterable

from ablate.config.formatting import count_noun, format_bytes, join_words
from ablate.reports.columns import word_column
from ablate.reports.report_data import ReportData
from ablate.reports.savings import Saving
from ablate.reports.table import NOTHING, Column, Section, Table
from ablate.verdict.intervals import Estimate


def tabulate_savings(report: ReportData) -> list[Section]:
    """Return the total compute of arms that start from other models; nothing if there are none."""
    savings, baseline = report.savings, report.record.spec.compared_with
    if not savings:
        return []
    title = f"Compute and memory, and the compute to reach the final result of {baseline}"
    sentences = _explain_savings(savings, report.record.spec.objective.metric, baseline)
    return [Section(title, Table(_saving_columns(savings, savings.get(baseline))), list(sentences))]


def _saving_columns(savings: dict[str, Saving], baseline: Saving | None) -> list[Column]:
    rows = list(savings.values())
    peaks = [s.peak_memory_bytes for s in rows]
    less = [_format_percent(1 - s.state_bytes / baseline.state_bytes) if baseline else NOTHING for s in rows]
    return [
        word_column("arm", savings),
        Column("FLOPs before", [f"{s.flops_before:.3g}" if s.flops_before else NOTHING for s in rows]),
        Column("FLOPs", [f"{s.flops:.3g}" for s in rows]),
        Column("states", [format_bytes(int(s.state_bytes)) for s in rows]),
        Column("saved", less),
        *([Column("measured", [format_bytes(int(n)) if n else NOTHING for n in peaks])] if any(peaks) else []),
        Column("reached", [f"{s.reached}/{s.seeds}" if s.seeds else NOTHING for s in rows]),
        Column("after updates", [f"{s.updates.mean:.0f}" if s.updates else NOTHING for s in rows]),
        Column("FLOPs saved", [_format_share(s.saved) if s.saved else NOTHING for s in rows]),
    ]


def _explain_savings(savings: dict[str, Saving], metric: str, baseline: str) -> Iterable[str]:
    yield (
        "FLOPs: 6 for each trained weight and 2 for each frozen weight, times the tokens, without the embedding "
        "look-up; before: of the models that the arm starts from. States: 16 bytes for a trained parameter and 2 for "
        f"a frozen one. Reached: the number of seeds on which the arm reached the final {metric} of {baseline} on the "
        "same seed, the updates until then, and the share of the baseline's FLOPs that is saved by then, with the "
        "FLOPs before included: mean ± 95 % interval over these seeds, as at one look. The searches of the learning "
        "rate are not counted for any arm."
    )
    if any(s.saved is None and s.seeds for s in savings.values()):
        yield "If an arm does not reach it on every seed, no mean is given: it would omit the worst seeds."
    if left_out := max(s.left_out for s in savings.values()):
        yield f"Left out are {count_noun(left_out, 'seed')} on which {baseline} failed and has no final result."
    if early := [f"{arm} {s.at_first} of {s.seeds}" for arm, s in savings.items() if s.at_first]:
        yield (
            f"Reached at the first validation: {join_words(early)}. They may have reached it earlier, and their "
            "interval, which is based on validations only, is too narrow."
        )
    if any(s.flops_before for s in savings.values()):
        yield "All seeds of an arm start from the same model, so the interval does not include that model's variance."


def _format_percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share else NOTHING


def _format_share(share: Estimate) -> str:
    mean = f"{100 * share.mean:+.1f} %"
    return mean if share.half_width is None else f"{mean} ± {100 * share.half_width:.1f}"
