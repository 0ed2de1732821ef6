"""The figure of a transfer: a panel for each arm, a line for each size."""

from __future__ import annotations

from ablate.addons.scaling.transfer.transfer import ArmTransfer, Transfer
from ablate.plots.figure import Axis, Figure, Panel, Part, list_entries
from ablate.plots.marks import Interval, Line, Mark, Points, Text
from ablate.plots.style import choose_looks


def draw_transfer(transfer: Transfer) -> Figure:
    """Return the loss of each arm against the learning rate: a line for each size through the mean over the seeds, a
    dot for each seed, a star at the best rate, and a cross above rates at which some seed failed."""
    chain = transfer.chain
    looks, panels = choose_looks(rung.size for rung in chain.rungs), list[Panel]()
    for arm, one in transfer.arms.items():
        marks = [mark for k, rung in enumerate(chain.rungs) for mark in _mark_size(one, k, looks[rung.size])]
        panels.append(Panel(marks, Axis(chain.path, log=True), Axis("" if panels else "val/loss (nats)"), arm))
    return Figure(
        "transfer",
        f"{chain.name}: val/loss against {chain.path}, over {chain.axis}",
        [Part(panels)],
        caption="Lines: means over the seeds that trained; dots: seeds; star and bar: the best rate with its 95 % "
        "interval; crosses: rates at which a seed failed.",
        entries=list_entries(looks),
    )


def _mark_size(one: ArmTransfer, k: int, look: tuple[str, str]) -> list[Mark]:
    colour, marker = look
    curves = list(one.curves[k].values())
    if not curves:
        return []
    marks: list[Mark] = []
    means: dict[float, float] = {}
    for rate in curves[0]:
        losses = [loss for curve in curves if (loss := curve[rate]) is not None]
        marks.append(Points([rate] * len(losses), losses, colour, ".", 4, alpha=0.4))
        if losses:
            means[rate] = sum(losses) / len(losses)
        if len(losses) < len(curves):
            marks.append(Text(rate, 0.97, "x", colour, "center", of_axes="y"))
    marks.append(Line(list(means), list(means.values()), colour, 1.2, marker=marker, size=4))
    best = one.optima[k]
    if best.rate is not None and best.interval is not None:
        marks.append(Interval(best.rate, min(means.values()), best.interval, colour, "*", size=9))
    return marks
