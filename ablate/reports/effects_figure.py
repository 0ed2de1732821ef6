"""The figure of a factorial: each effect with its interval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ablate.plots import style
from ablate.reports.charts.chart import choose_range
from ablate.reports.charts.effects import LOOKS
from ablate.reports.findings import objective_sign
from ablate.reports.labels import label_metric
from ablate.sweeps.records import SweepRecord
from ablate.verdict.effect_statements import name_effect
from ablate.verdict.effects import Effect

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHADE = "#f2f2f2"


def draw_effects(record: SweepRecord, effects: Mapping[str, Effect]) -> Figure:
    """Return one row per effect: its mean with its interval, and the verdict in words."""
    metric, matters = record.spec.objective.metric, record.spec.confirm.effect
    better = "left" if objective_sign(record) > 0 else "right"
    figure, axes = style.create_canvas(
        f"{record.title}: effects on fresh seeds",
        f"mean and interval; {better} is better" + ("; grey: too small to matter" if matters else ""),
    )
    axes.set_xlabel(f"effect on {label_metric(metric, record.spec)}")
    if matters:
        axes.axvspan(-matters, matters, color=_SHADE, linewidth=0, zorder=0.5)
    axes.axvline(0, color="black", linewidth=1, zorder=1)
    for row, effect in enumerate(effects.values()):
        colour, marker = LOOKS[effect.contrast.is_main]
        d = effect.versus.difference
        if d is None:
            where = axes.get_yaxis_transform()
            axes.text(0.03, row, "no seed trained in all cells", va="center", fontsize=8.5, transform=where)
            continue
        axes.errorbar(d.mean, row, xerr=d.half_width, fmt=marker, color=colour, capsize=4, zorder=3)
    known = [d for effect in effects.values() if (d := effect.versus.difference)]
    axes.set_xlim(*choose_range([d.mean for d in known], [d.interval for d in known if d.interval], 0.0))
    labels = [f"{style.escape_math(name)}\n{name_effect(effect)}" for name, effect in effects.items()]
    axes.set_yticks(range(len(labels)), labels, fontsize=8.5)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(False, axis="y")
    if len({effect.contrast.is_main for effect in effects.values()}) > 1:
        names = {True: "main effect", False: "interaction"}
        style.add_legend(figure, [style.create_entry(look, names[main]) for main, look in LOOKS.items()])
    return figure
