"""What a ladder shows, on a terminal, as a picture, as JSON and in MLflow."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ablate import tracking
from ablate.cli.tables import table
from ablate.config.errors import StoreError
from ablate.config.formatting import count_noun, format_count, format_number
from ablate.plots import style
from ablate.reports.publish import publish, report_run
from ablate.scaling.fits import FLOOR, Fit, Interval
from ablate.scaling.ladder import METRIC, Ladder
from ablate.verdict.confirmation import format_estimate
from ablate.verdict.intervals import difference, estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

JSON, TEXT, LOSSES, DIFFERENCES = "ladder.json", "ladder.txt", "ladder.png", "ladder-differences.png"


@dataclass(frozen=True)
class LadderReport:
    """A ladder, and where what is told of it lies."""

    ladder: Ladder
    folder: Path
    """Of ladder.png, ladder-differences.png, ladder.json and ladder.txt."""
    mlflow: dict[str, str]
    """experiment_id and run_id; empty where the store did not take it."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        found, target = self.ladder, self.ladder.target
        return {
            "ladder": found.name,
            "metric": METRIC,
            "baseline": found.baseline,
            "rungs": [
                {"size": r.size, "sweep": r.spec.name, "parameters": r.parameters, "items": r.items}
                for r in found.rungs
            ],
            "losses": found.losses,
            "curves": {
                arm: {
                    "form": fit.form,
                    "coefficients": [float(value) for value in fit.coefficients[0]],
                    "unit": fit.unit,
                    "extrapolated": asdict(fit.at(target[1])) if target else None,
                }
                for arm, fit in found.curves.items()
            },
            "differences": {
                arm: {
                    "slope_per_tenfold": asdict(trend.slope),
                    "verdict": trend.word(found.rungs[-1].parameters),
                    "extrapolated": asdict(trend.at(target[1])) if target else None,
                }
                for arm, trend in found.trends.items()
            },
            "extrapolate": {"size": target[0], "parameters": target[1]} if target else None,
            "verdict": verdict(found),
            "folder": str(self.folder),
            "mlflow": self.mlflow,
            "notes": list(self.notes),
        }


def report_ladder(found: Ladder) -> LadderReport:
    """Writes the pictures, ladder.json and ladder.txt into `reports/NAME` of the store, and to the run "report" of the
    MLflow experiment of that name; an MLflow store that fails is noted. Raises StoreError where the folder cannot be
    written."""
    folder = tracking.open_folder(f"reports/{found.name}")
    made = LadderReport(found, folder, {})
    figures = {LOSSES: losses_figure(found), DIFFERENCES: differences_figure(found)}
    for name, figure in figures.items():
        figure.savefig(folder / name, metadata={"Software": None})
    try:
        made = replace(made, mlflow=report_run(found.name))
        publish(made.mlflow["run_id"], [*(folder / name for name in figures), *_write(made)])
    except StoreError as error:
        made = replace(made, mlflow={}, notes=(f"The ladder is in {folder} only. {error}",))
        _write(made)
    return made


def _write(made: LadderReport) -> list[Path]:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        render(made, console)
    texts = {JSON: json.dumps(made.to_dict(), indent=2, allow_nan=False) + "\n", TEXT: capture.get()}
    for name, text in texts.items():
        (made.folder / name).write_text(text, encoding="utf-8")
    return [made.folder / name for name in texts]


# ---------------------------------------------------------------------------------------------------- words


def render(made: LadderReport, console: Console) -> None:
    """Prints the ladder."""
    found = made.ladder
    console.print(f"\n{found.name}: {METRIC} on fresh seeds, mean +- 95 % interval", style="bold", markup=False)
    arms = list(found.losses)
    header = ["size", "parameters", "trained on", *arms, *(f"{arm} less {found.baseline}" for arm in found.trends)]
    rows = []
    for k, rung in enumerate(found.rungs):
        cells = [_mean(found.losses[arm][k]) for arm in arms]
        cells += [_difference(found, arm, k) for arm in found.trends]
        rows.append([rung.size, format_count(rung.parameters), format_count(rung.items), *cells])
    if found.target:
        name, parameters = found.target
        cells = [_spoken(found.curves[arm].at(parameters)) if arm in found.curves else "-" for arm in arms]
        cells += [_spoken(trend.at(parameters), sign=True) for trend in found.trends.values()]
        rows.append([f"{name}, extrapolated", format_count(parameters), "", *cells])
    console.print(table(header, rows, right=header[1:]))
    console.print("\nWhat this shows", style="bold")
    for sentence in (*verdict(found), *_caveats(found), *(f"Note: {note}" for note in made.notes)):
        console.print(sentence, markup=False, soft_wrap=False)
    console.print(f"\n{made.folder}: {LOSSES}, {DIFFERENCES}, {JSON}, {TEXT}", markup=False, soft_wrap=True)
    if made.mlflow:
        console.print(f'MLflow: run "report" of the experiment "{found.name}"', markup=False)


def verdict(found: Ladder) -> list[str]:
    """One sentence for each arm: whether its difference to the baseline shrinks, stays or grows."""
    sentences = []
    largest = found.rungs[-1]
    for arm, trend in found.trends.items():
        slope = f"{_spoken(trend.slope, sign=True)} nats for ten times the parameters"
        word = trend.word(largest.parameters)
        if word == "stays":
            told = "stays, as far as these sizes and seeds can show" if trend.sure else "cannot be told from one seed"
        else:
            told = word
        text = f"{arm} and {found.baseline}: the difference {told} ({slope})."
        if found.target:
            name, parameters = found.target
            text += f" At {name} the line is at {_spoken(trend.at(parameters), sign=True)}."
        sentences.append(text)
    return sentences


def _caveats(found: Ladder) -> list[str]:
    forms = sorted({fit.form for fit in found.curves.values()})
    texts = [
        f"Loss against size N, the weights in the matrices of the layers, is fitted as {' or '.join(forms)}"
        + ("" if forms == [FLOOR] else " (fewer than four sizes tell no floor)")
        + "; a difference as a straight line in log N. Intervals are those of the seeds alone."
    ]
    if found.target and found.target[1] > (largest := found.rungs[-1]).parameters:
        times = found.target[1] / largest.parameters
        texts.append(
            f"{found.target[0]} has {times:.3g} times the parameters of {largest.size}, the largest size trained."
        )
    ratios = [rung.items / rung.parameters for rung in found.rungs]
    if max(ratios) > 1.1 * min(ratios):
        texts.append(
            f"The sizes differ in tokens per parameter, {min(ratios):.3g} to {max(ratios):.3g}, so this mixes both."
        )
    missing = [
        f"{arm} at {rung.size}"
        for arm, losses in found.losses.items()
        for rung, by_seed in zip(found.rungs, losses, strict=True)
        if len(by_seed) < rung.spec.confirm.seeds
    ]
    if missing:
        texts.append(f"Not trained to the end on all fresh seeds, so left out there: {', '.join(missing)}.")
    return texts


def _mean(by_seed: dict[int, float]) -> str:
    return format_estimate(estimate(list(by_seed.values()))) if by_seed else "-"


def _difference(found: Ladder, arm: str, k: int) -> str:
    less = difference(found.losses[arm][k], found.losses[found.baseline][k])
    return format_estimate(less.estimate, sign=True) if less else "-"


def _spoken(value: Interval, sign: bool = False) -> str:
    """'2.1533 (2.1 ... 2.2)'."""
    told = f"{value.value:+.4f}" if sign else format_number(value.value)
    return told if value.low is None else f"{told} ({value.low:.4f} ... {value.high:.4f})"


# ---------------------------------------------------------------------------------------------------- pictures


def losses_figure(found: Ladder) -> Figure:
    """Loss of each arm against size, with its curve."""
    seeds = count_noun(max(rung.spec.confirm.seeds for rung in found.rungs), "fresh seed")
    figure, axes = style.create_canvas(
        f"{found.name}: {METRIC} against size", f"{seeds} a size; lines: fits with 95 % intervals"
    )
    _axes(axes, found, f"{METRIC} (nats)")
    looks = style.choose_looks(found.losses)
    for arm, losses in found.losses.items():
        _draw(axes, found, losses, found.curves.get(arm), looks[arm])
    style.add_legend(figure, [style.create_entry(looks[arm], arm) for arm in found.losses])
    return figure


def differences_figure(found: Ladder) -> Figure:
    """The difference of each arm to the baseline against size, with its line."""
    figure, axes = style.create_canvas(
        f"{found.name}: difference to {found.baseline} against size", "below 0: better; lines with 95 % intervals"
    )
    _axes(axes, found, f"{METRIC} less that of {found.baseline} (nats)")
    axes.axhline(0, color="black", linewidth=0.8)
    looks = style.choose_looks(found.losses)
    base = found.losses[found.baseline]
    for arm, trend in found.trends.items():
        pairs = [{s: a[s] - b[s] for s in a if s in b} for a, b in zip(found.losses[arm], base, strict=True)]
        _draw(axes, found, pairs, trend, looks[arm])
    style.add_legend(figure, [style.create_entry(looks[arm], arm) for arm in found.trends])
    return figure


def _axes(axes: Any, found: Ladder, label: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel("parameters of the layers")
    axes.set_ylabel(label)
    places = [*((rung.size, rung.parameters) for rung in found.rungs), *([found.target] if found.target else [])]
    axes.set_xticks([n for _, n in places], [f"{size}\n{format_count(n)}" for size, n in places])
    axes.minorticks_off()


def _draw(
    axes: Any, found: Ladder, by_size: Sequence[dict[int, float]], fit: Fit | None, look: tuple[str, str]
) -> None:
    """The seeds and their means, and the fit with its interval."""
    colour, marker = look
    for rung, by_seed in zip(found.rungs, by_size, strict=True):
        if by_seed:
            values = list(by_seed.values())
            axes.plot([rung.parameters] * len(values), values, marker, color=colour, alpha=0.35, markersize=4, zorder=2)
            axes.plot(rung.parameters, float(np.mean(values)), marker, color=colour, markersize=7, zorder=3)
    if fit is None:
        return
    last = max(found.rungs[-1].parameters, found.target[1] if found.target else 0)
    xs = np.geomspace(float(found.rungs[0].parameters), float(last), 60)
    along = [fit.at(x) for x in xs]
    axes.plot(xs, [i.value for i in along], color=colour, linewidth=1.3, zorder=2)
    if fit.sure:
        axes.fill_between(xs, [i.low for i in along], [i.high for i in along], color=colour, alpha=0.15, linewidth=0)
