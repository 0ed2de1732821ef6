"""The report of a ladder: its table and sentences, as pictures, as JSON and in MLflow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.config.formatting import count_noun, format_count, format_number
from ablate.plots import style
from ablate.reports.publish import find_or_start_run, publish
from ablate.scaling.fits import FLOOR, Fit, Interval
from ablate.scaling.ladder import METRIC, Ladder
from ablate.verdict.confirmation import format_estimate
from ablate.verdict.intervals import estimate, estimate_difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

JSON, TEXT, LOSSES, DIFFERENCES = "ladder.json", "ladder.txt", "ladder.png", "ladder-differences.png"


@dataclass(frozen=True)
class LadderReport:
    """A ladder, and where its files are."""

    ladder: Ladder
    folder: Path
    """That of ladder.png, ladder-differences.png, ladder.json and ladder.txt."""
    mlflow: dict[str, str]
    """experiment_id and run_id; empty where the store did not take it."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        ladder, target = self.ladder, self.ladder.target
        return {
            "ladder": ladder.name,
            "metric": METRIC,
            "baseline": ladder.baseline,
            "rungs": [
                {"size": r.size, "sweep": r.spec.name, "parameters": r.parameters, "items": r.items}
                for r in ladder.rungs
            ],
            "losses": ladder.losses,
            "curves": {
                arm: {
                    "form": fit.form,
                    "coefficients": [float(value) for value in fit.coefficients[0]],
                    "unit": fit.unit,
                    "extrapolated": asdict(fit.at(target[1])) if target else None,
                }
                for arm, fit in ladder.curves.items()
            },
            "differences": {
                arm: {
                    "slope_per_tenfold": asdict(trend.slope),
                    "verdict": trend.describe(ladder.rungs[-1].parameters),
                    "extrapolated": asdict(trend.at(target[1])) if target else None,
                }
                for arm, trend in ladder.trends.items()
            },
            "extrapolate": {"size": target[0], "parameters": target[1]} if target else None,
            "verdict": describe_trends(ladder),
            "folder": str(self.folder),
            "mlflow": self.mlflow,
            "notes": list(self.notes),
        }


def report_ladder(ladder: Ladder, to_text: Callable[[LadderReport], str]) -> LadderReport:
    """Write the pictures, ladder.json and ladder.txt (what `to_text` returns) into `reports/NAME` of the store, and to
    the run "report" of the MLflow experiment of that name; an MLflow store that fails is noted. Raises StoreError
    where the folder cannot be written."""
    folder = tracking.open_folder(f"reports/{ladder.name}")
    report = LadderReport(ladder, folder, {})
    figures = {LOSSES: draw_losses(ladder), DIFFERENCES: draw_differences(ladder)}
    for name, figure in figures.items():
        figure.savefig(folder / name, metadata={"Software": None})
    try:
        report = replace(report, mlflow=find_or_start_run(ladder.name))
        publish(report.mlflow["run_id"], [*(folder / name for name in figures), *_write(report, to_text)])
    except StoreError as error:
        report = replace(report, mlflow={}, notes=(f"The ladder is in {folder} only. {error}",))
        _write(report, to_text)
    return report


def _write(report: LadderReport, to_text: Callable[[LadderReport], str]) -> list[Path]:
    texts = {JSON: json.dumps(report.to_dict(), indent=2, allow_nan=False) + "\n", TEXT: to_text(report)}
    for name, text in texts.items():
        (report.folder / name).write_text(text, encoding="utf-8")
    return [report.folder / name for name in texts]


# ---------------------------------------------------------------------------------------------------- text


def tabulate(ladder: Ladder) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table: a row for each size, and one for the size extrapolated to."""
    arms = list(ladder.losses)
    header = ["size", "parameters", "trained on", *arms, *(f"{arm} less {ladder.baseline}" for arm in ladder.trends)]
    rows = []
    for k, rung in enumerate(ladder.rungs):
        cells = [_format_mean(ladder.losses[arm][k]) for arm in arms]
        cells += [_format_difference(ladder, arm, k) for arm in ladder.trends]
        rows.append([rung.size, format_count(rung.parameters), format_count(rung.items), *cells])
    if ladder.target:
        name, parameters = ladder.target
        cells = [_format_interval(ladder.curves[arm].at(parameters)) if arm in ladder.curves else "-" for arm in arms]
        cells += [_format_interval(trend.at(parameters), sign=True) for trend in ladder.trends.values()]
        rows.append([f"{name}, extrapolated", format_count(parameters), "", *cells])
    return header, rows


def describe_trends(ladder: Ladder) -> list[str]:
    """Return one sentence for each arm: whether its difference to the baseline shrinks, stays or grows."""
    sentences = []
    largest = ladder.rungs[-1]
    for arm, trend in ladder.trends.items():
        slope = f"{_format_interval(trend.slope, sign=True)} nats for ten times the parameters"
        word = trend.describe(largest.parameters)
        if word == "stays":
            word = "stays, as far as these sizes and seeds can show" if trend.sure else "cannot be told from one seed"
        text = f"{arm} and {ladder.baseline}: the difference {word} ({slope})."
        if ladder.target:
            name, parameters = ladder.target
            text += f" At {name} the line is at {_format_interval(trend.at(parameters), sign=True)}."
        sentences.append(text)
    return sentences


def list_caveats(ladder: Ladder) -> list[str]:
    """Return how the curves were fitted, and what limits the sentences about the trends."""
    forms = sorted({fit.form for fit in ladder.curves.values()})
    texts = [
        f"Loss against size N, the weights in the matrices of the layers, is fitted as {' or '.join(forms)}"
        + ("" if forms == [FLOOR] else " (fewer than four sizes tell no floor)")
        + "; a difference as a straight line in log N. Intervals are those of the seeds alone."
    ]
    if ladder.target and ladder.target[1] > (largest := ladder.rungs[-1]).parameters:
        times = ladder.target[1] / largest.parameters
        texts.append(
            f"{ladder.target[0]} has {times:.3g} times the parameters of {largest.size}, the largest size trained."
        )
    ratios = [rung.items / rung.parameters for rung in ladder.rungs]
    if max(ratios) > 1.1 * min(ratios):
        texts.append(
            f"The sizes differ in tokens per parameter, {min(ratios):.3g} to {max(ratios):.3g}, so this mixes both."
        )
    missing = [
        f"{arm} at {rung.size}"
        for arm, losses in ladder.losses.items()
        for rung, by_seed in zip(ladder.rungs, losses, strict=True)
        if len(by_seed) < rung.spec.confirm.seeds
    ]
    if missing:
        texts.append(f"Not trained to the end on all fresh seeds, so left out there: {', '.join(missing)}.")
    return texts


def _format_mean(by_seed: dict[int, float]) -> str:
    return format_estimate(estimate(list(by_seed.values()))) if by_seed else "-"


def _format_difference(ladder: Ladder, arm: str, k: int) -> str:
    less = estimate_difference(ladder.losses[arm][k], ladder.losses[ladder.baseline][k])
    return format_estimate(less.estimate, sign=True) if less else "-"


def _format_interval(value: Interval, sign: bool = False) -> str:
    """Return '2.1533 (2.1 ... 2.2)'."""
    text = f"{value.value:+.4f}" if sign else format_number(value.value)
    return text if value.low is None else f"{text} ({value.low:.4f} ... {value.high:.4f})"


# ---------------------------------------------------------------------------------------------------- pictures


def draw_losses(ladder: Ladder) -> Figure:
    """Return the loss of each arm against size, with its curve."""
    seeds = count_noun(max(rung.spec.confirm.seeds for rung in ladder.rungs), "fresh seed")
    figure, axes = style.create_canvas(
        f"{ladder.name}: {METRIC} against size", f"{seeds} a size; lines: fits with 95 % intervals"
    )
    _set_axes(axes, ladder, f"{METRIC} (nats)")
    looks = style.choose_looks(ladder.losses)
    for arm, losses in ladder.losses.items():
        _draw_fit(axes, ladder, losses, ladder.curves.get(arm), looks[arm])
    style.add_legend(figure, [style.create_entry(looks[arm], arm) for arm in ladder.losses])
    return figure


def draw_differences(ladder: Ladder) -> Figure:
    """Return the difference of each arm to the baseline against size, with its line."""
    figure, axes = style.create_canvas(
        f"{ladder.name}: difference to {ladder.baseline} against size", "below 0: better; lines with 95 % intervals"
    )
    _set_axes(axes, ladder, f"{METRIC} less that of {ladder.baseline} (nats)")
    axes.axhline(0, color="black", linewidth=0.8)
    looks = style.choose_looks(ladder.losses)
    base = ladder.losses[ladder.baseline]
    for arm, trend in ladder.trends.items():
        pairs = [{s: a[s] - b[s] for s in a if s in b} for a, b in zip(ladder.losses[arm], base, strict=True)]
        _draw_fit(axes, ladder, pairs, trend, looks[arm])
    style.add_legend(figure, [style.create_entry(looks[arm], arm) for arm in ladder.trends])
    return figure


def _set_axes(axes: Axes, ladder: Ladder, label: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("parameters of the layers")
    axes.set_ylabel(label)
    places = [*((rung.size, rung.parameters) for rung in ladder.rungs), *([ladder.target] if ladder.target else [])]
    axes.set_xticks([n for _, n in places], [f"{size}\n{format_count(n)}" for size, n in places])
    axes.minorticks_off()


def _draw_fit(
    axes: Any, ladder: Ladder, by_size: Sequence[dict[int, float]], fit: Fit | None, look: tuple[str, str]
) -> None:
    """Draw the seeds and their means, and the fit with its interval."""
    colour, marker = look
    for rung, by_seed in zip(ladder.rungs, by_size, strict=True):
        if by_seed:
            values = list(by_seed.values())
            axes.plot([rung.parameters] * len(values), values, marker, color=colour, alpha=0.35, markersize=4, zorder=2)
            axes.plot(rung.parameters, float(np.mean(values)), marker, color=colour, markersize=7, zorder=3)
    if fit is None:
        return
    last = max(ladder.rungs[-1].parameters, ladder.target[1] if ladder.target else 0)
    xs = np.geomspace(float(ladder.rungs[0].parameters), float(last), 60)
    along = [fit.at(x) for x in xs]
    axes.plot(xs, [i.value for i in along], color=colour, linewidth=1.3, zorder=2)
    if fit.sure:
        axes.fill_between(xs, [i.low for i in along], [i.high for i in along], color=colour, alpha=0.15, linewidth=0)
