"""The effects of a factorial in one interactive figure."""

from __future__ import annotations

from collections.abc import Mapping

from ablate.config.formatting import format_uncertain
from ablate.plots import style
from ablate.reports.charts.chart import (
    Chart,
    Trace,
    build_axis,
    build_band,
    build_error,
    build_layout,
    choose_range,
    choose_symbol,
    escape,
)
from ablate.reports.labels import label_metric
from ablate.sweeps.records import SweepRecord
from ablate.verdict.effect_statements import name_effect
from ablate.verdict.effects import Effect

LOOKS = {True: (style.PALETTE[0], "o"), False: (style.PALETTE[1], "D")}
"""Whether it is a main effect -> colour and marker."""
_ROW, _FRAME = 46, 98  # pixels: of an effect, and of the axes


def caption_effects(record: SweepRecord, effects: Mapping[str, Effect]) -> str:
    """Return what the figures of effects show."""
    family, effect = next(iter(effects.values())).family, record.spec.confirm.effect
    sharing = "one comparison" if family == 1 else f"{family} comparisons together"
    band = f" Grey: effects below the {effect:.2g} that matter." if effect else ""
    return (
        f"Effects on {record.spec.objective.title}: each is a mean over the other components and over the seeds on "
        f"which all of its cells trained, with an interval that errs in 5 % for {sharing} and all looks.{band}"
    )


def chart_effects(record: SweepRecord, effects: Mapping[str, Effect]) -> Chart | None:
    """Return the figure of all effects; None where no seed trained in all cells of any."""
    known = {name: d for name, effect in effects.items() if (d := effect.versus.difference)}
    if not known:
        return None
    matters, metric = record.spec.confirm.effect, record.spec.objective.metric
    ends = choose_range([d.mean for d in known.values()], [d.interval for d in known.values() if d.interval], 0.0)
    rows = list(effects)
    zero = {"type": "line", "xref": "x", "yref": "y domain", "x0": 0, "x1": 0, "y0": 0, "y1": 1, "layer": "below"}
    traces: list[Trace] = []
    for name, d in known.items():
        main = effects[name].contrast.is_main
        colour, symbol = LOOKS[main][0], choose_symbol({name: LOOKS[main]}, name)
        text = f"{escape(name)}: {format_uncertain(d.mean, d.half_width, sign=True)} (n = {d.n})"
        error = {"error_x": build_error([d.interval], [d.mean], colour)} if d.interval else {}
        traces.append(
            {
                "type": "scatter", "mode": "markers", "x": [d.mean], "y": [rows.index(name)], "text": [text],
                "marker": {"color": colour, "size": 11, "symbol": symbol}, "hovertemplate": "%{text}<extra></extra>",
                **error,
            }
        )  # fmt: skip
    labels = [
        f'<b>{escape(name)}</b><br><span style="color:#555;font-size:11px">{name_effect(effect)}</span>'
        for name, effect in effects.items()
    ]
    layout = build_layout(
        _FRAME + _ROW * len(rows),
        showlegend=False,
        shapes=[*([build_band(-matters, matters, "x", "y")] if matters else []), zero],
        xaxis=build_axis(f"effect on {label_metric(metric, record.spec)}", range=list(ends), nticks=6),
        yaxis={
            "tickvals": list(range(len(rows))), "ticktext": labels, "range": [len(rows) - 0.5, -0.5],
            "automargin": True, "showgrid": False, "zeroline": False, "fixedrange": True,
        },
    )  # fmt: skip
    caption = caption_effects(record, effects)
    return Chart("effects", "Effects of the components", caption, traces, layout, "effects.png")
