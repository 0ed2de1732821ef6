"""The figure of a transfer: a panel for each arm, a line for each size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.addons.scaling.transfer.transfer import ArmTransfer, Transfer
from ablate.plots import style
from ablate.plots.panels import create_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_transfer(transfer: Transfer) -> Figure:
    """Return the loss of each arm against the learning rate: a line for each size through the mean over the seeds, a
    dot for each seed, a star at the best rate, and a cross above rates at which some seed failed."""
    chain = transfer.chain
    title = f"{chain.name}: val/loss against {chain.path}, over {chain.axis}"
    figure, panels = create_panels(title, list(transfer.arms))
    looks = style.choose_looks(rung.size for rung in chain.rungs)
    for panel, (arm, one) in zip(panels, transfer.arms.items(), strict=True):
        panel.set_title(style.escape_math(arm), fontsize=9, loc="left")
        panel.set_xscale("log")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(True, which="major", color="#e6e6e6", linewidth=0.7)
        for k, rung in enumerate(chain.rungs):
            _draw_size(panel, one, k, looks[rung.size])
        style.label_log_ticks(panel.xaxis)
        panel.set_xlabel(chain.path, fontsize=8)
    panels[0].set_ylabel("val/loss (nats)")
    style.add_legend(figure, [style.create_entry(looks[rung.size], rung.size) for rung in chain.rungs])
    return figure


def _draw_size(panel: Axes, one: ArmTransfer, k: int, look: tuple[str, str]) -> None:
    colour, marker = look
    curves = list(one.curves[k].values())
    if not curves:
        return
    means: dict[float, float] = {}
    for rate in curves[0]:
        losses = [loss for curve in curves if (loss := curve[rate]) is not None]
        panel.plot([rate] * len(losses), losses, ".", color=colour, alpha=0.4, markersize=4)
        if losses:
            means[rate] = sum(losses) / len(losses)
        if len(losses) < len(curves):
            panel.plot(rate, 0.97, "x", color=colour, markersize=5, transform=panel.get_xaxis_transform())
    panel.plot(list(means), list(means.values()), marker=marker, color=colour, markersize=4, linewidth=1.2)
    best = one.optima[k]
    if best.rate is not None and best.interval is not None:
        low, high = best.interval
        panel.hlines(min(means.values()), low, high, color=colour, linewidth=1)
        panel.plot(best.rate, min(means.values()), "*", color=colour, markersize=9, markeredgecolor="black")
