"""What rungs find on recorded grids, beside what the whole grid finds: for which share of its tokens, and how often.

    python benchmarks/rungs.py                       # as docs/explanation/rungs.md, in seconds
    python benchmarks/rungs.py --judge trunk         # without the decay before a rung is judged
    python benchmarks/rungs.py --file tests/data/rung_grid_slow.csv    # where few have learned by the first rung

The losses are those of tests/data/rung_grids.csv (benchmarks/record_rungs.py): validated at every rung, after a decay
of a copy, of every setting. A grid of nine is searched as it was recorded, one search for each placement and seed; one
of 16 lies between the recorded rates, in the logarithm of which its losses are linear.

What a search loses is the final loss of the setting that it ends with, less that of the grid's best: on the searched
seed, on which the grid's is the smallest by choice, and as a mean over the other seeds, which says what the settings
are worth. The noise is the standard deviation of the difference of two runs: that of a seed at the best setting of each
placement, pooled over those of a family, times the square root of two; of means over seeds as much less as these have.
After candidates: three settings of the search, the best of them on the other seeds, less the same of the grid.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.sweeps.search.methods import Rung
from ablate.sweeps.search.rungs import Standing, climb, rank_reached
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.intervals import bound_mean
from ablate.verdict.outcomes import Outcome, classify

FILE = Path(__file__).parents[1] / "tests" / "data" / "rung_grids.csv"
TRIVIAL = {"llama": 3.2159, "vit": 2.3026}
"""Family -> the validation loss of a model that knows only frequencies, of its data."""
PLANS = {"nine": (9, 0.33, 0.27), "sixteen": (16, 0.25, 0.20)}
"""Settings, share that goes on, and the share of the tokens that is to be reached."""
CANDIDATES = 3
"""Settings that are compared on further seeds, the default of `confirm`."""
SCHEDULE = {"kind": "wsd", "warmup_steps": 12, "decay_fraction": 0.1}


@dataclass(frozen=True)
class Grid:
    """The losses of one placement of a family, of all seeds."""

    family: str
    arm: str
    logs: np.ndarray
    """Logarithms of the learning rates, ascending."""
    decayed: Mapping[int, np.ndarray]
    """Updates -> losses after the decay, of shape (seeds, rates); infinite where the run diverged."""
    trunk: Mapping[int, np.ndarray]
    """The same without the decay; nothing at the whole length."""

    @property
    def length(self) -> int:
        """Updates of a whole run."""
        return max(self.decayed)

    def read(self, judge: str, updates: int, logs: np.ndarray) -> np.ndarray:
        """Return the losses at a rung at these logarithms of rates, of shape (seeds, rates)."""
        losses = self.decayed[updates] if judge == "decayed" or updates == self.length else self.trunk[updates]
        return np.array([np.interp(logs, self.logs, one) for one in losses])

    def measure_variance(self) -> float:
        """Return the variance over seeds at the setting with the least mean final loss."""
        final = self.decayed[self.length]
        return float(final[:, final.mean(0).argmin()].var(ddof=1)) if len(final) > 1 else math.nan


def read_grids(file: Path = FILE) -> list[Grid]:
    """Return the grids of the file of which all seeds are whole."""
    losses: dict[tuple[str, str], dict[tuple[int, float], dict[int, tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            both = float(row["decayed"] or math.inf), float(row["trunk"] or math.inf)
            losses[row["family"], row["arm"]][int(row["seed"]), float(row["lr"])][int(row["updates"])] = both
    grids = []
    for (family, arm), cells in losses.items():
        rates, seeds = sorted({rate for _, rate in cells}), sorted({seed for seed, _ in cells})
        lengths = sorted({updates for cell in cells.values() for updates in cell})
        whole = [seed for seed in seeds if all(len(cells[seed, rate]) == len(lengths) for rate in rates)]
        tables = [
            {n: np.array([[cells[seed, rate][n][which] for rate in rates] for seed in whole]) for n in lengths}
            for which in (0, 1)
        ]
        grids.append(Grid(family, arm, np.log(rates), *tables))
    return grids


@dataclass(frozen=True)
class Search:
    """What a search by rungs ended with on one seed of a grid."""

    grid: Grid
    best: float
    """The learning rate of the grid's best."""
    found: float
    """That of the setting that the rungs ended with."""
    lost: float
    """Its final loss, less the grid's, on the searched seed."""
    elsewhere: float
    """The same as a mean over the other seeds."""
    noise: float
    """The standard deviation of the difference of two runs."""
    share: float
    """The tokens that it took, as a share of the grid's."""
    chosen: float
    """The mean loss on the other seeds of the best there of its three candidates, less that of the grid's three."""


def measure_noise(grids: Sequence[Grid]) -> dict[str, float]:
    """Return family -> the standard deviation of the difference of two runs, pooled over its placements."""
    by_family: dict[str, list[float]] = defaultdict(list)
    for grid in grids:
        by_family[grid.family].append(grid.measure_variance())
    return {family: math.sqrt(2 * statistics.fmean(variances)) for family, variances in by_family.items()}


def build_spec(settings: int, keep: float) -> Sweep:
    """Return a sweep of one arm with so many settings and three rungs."""
    search = {"method": "rungs", "keep": keep, "optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
    tree = {
        "name": "replayed",
        "experiment": {"schedule": SCHEDULE, "trainer": {"max_steps": 400}},
        "search": search,
        "budget": {"trials": settings},
    }
    return Sweep.from_tree(tree)


def has_rungs(grid: Grid, settings: int, keep: float) -> bool:
    """Return whether a grid was recorded at the rungs of a plan."""
    return all(rung.updates in grid.decayed for rung in build_spec(settings, keep).plan_rungs("all"))


def run_searches(grid: Grid, settings: int, keep: float, judge: str, noise: float) -> Iterator[Search]:
    """Yield the searches of a grid of so many settings, one for each seed."""
    rungs = build_spec(settings, keep).plan_rungs("all")
    logs = np.linspace(grid.logs[0], grid.logs[-1], settings)
    tables = [grid.read(judge, rung.updates, logs) for rung in rungs]
    for seed, final in enumerate(tables[-1]):

        def train(number: int, rung: int, seed: int = seed) -> Outcome:
            loss = float(tables[rung][seed, number])
            return Outcome(classify(loss, TRIVIAL[grid.family]), loss if math.isfinite(loss) else None)

        standings = climb(rungs, train)
        found = rank_reached(rungs, standings)[0]
        best = int(final.argmin())
        others = np.delete(tables[-1], seed, axis=0)
        elsewhere = float((others[:, found] - others[:, best]).mean()) if len(others) else math.nan
        lost = float(final[found] - final[best])
        share = count_updates(rungs, standings) / (settings * rungs[-1].updates)
        own = rank_reached(rungs, standings)[:CANDIDATES]
        chosen = choose(others, own) - choose(others, list(final.argsort()[:CANDIDATES]))
        yield Search(grid, math.exp(logs[best]), math.exp(logs[found]), lost, elsewhere, noise, share, chosen)


def choose(losses: np.ndarray, candidates: Sequence[int]) -> float:
    """Return the least mean over seeds of the losses (seeds, settings) of the candidates; nan without seeds."""
    return min(float(losses[:, number].mean()) for number in candidates) if len(losses) else math.nan


def count_updates(rungs: Sequence[Rung], standings: Mapping[int, Standing]) -> int:
    """Return the updates of a search: to each rung from where the one before left off, with the decay of the copy."""
    begins = [0, *(rung.shared for rung in rungs)]
    each = [rung.updates - begin for rung, begin in zip(rungs, begins, strict=False)]
    return sum(sum(each[: len(one.ended)]) for one in standings.values())


def run_all(grids: Sequence[Grid], settings: int, keep: float, judge: str) -> list[Search]:
    """Return the searches of all grids."""
    noise = measure_noise(grids)
    return [one for grid in grids for one in run_searches(grid, settings, keep, judge, noise[grid.family])]


def format_mean(values: Sequence[float]) -> str:
    """Return a mean with its 95 % interval."""
    estimate = bound_mean(values, 0.05)
    return f"{estimate.mean:.3f} ± {estimate.half_width:.3f}" if estimate.half_width else f"{estimate.mean:.3f}"


COLUMNS = (
    "searches", "tokens", "the grid's winner", "lost", "within 1 sd", "within 2 sd", "lost on other seeds",
    "within 2 sd", "lost after candidates", "within 2 sd", "decades too high",
)  # fmt: skip


def summarise(searches: Sequence[Search]) -> list[str]:
    """Return the cells of a row, under COLUMNS."""
    count = len(searches)
    losses, elsewhere = [one.lost for one in searches], [one.elsewhere for one in searches]

    def share(held: Iterable[bool]) -> str:
        return f"{sum(held) / count:.0%}"

    def share_within(values: Sequence[float], times: float) -> str:
        known = not math.isnan(searches[0].noise)  # of one seed there is none
        return share(value <= times * one.noise for value, one in zip(values, searches, strict=True)) if known else "-"

    others = max(1, len(searches[0].grid.decayed[searches[0].grid.length]) - 1)

    return [
        str(count),
        f"{statistics.fmean(one.share for one in searches):.1%}",
        share(one.found == one.best for one in searches),
        f"{format_mean(losses)}, at most {max(losses):.3f}",
        share_within(losses, 1),
        share_within(losses, 2),
        "-" if math.isnan(elsewhere[0]) else format_mean(elsewhere),
        share_within(elsewhere, 2 / math.sqrt(others)),  # of a mean over them
        "-" if math.isnan(elsewhere[0]) else format_mean([one.chosen for one in searches]),
        share_within([one.chosen for one in searches], 2 / math.sqrt(others)),
        format_mean([math.log10(one.found / one.best) for one in searches]),
    ]


def print_row(*cells: object) -> None:
    """Print one row of a table in Markdown."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", choices=("decayed", "trunk"), nargs="+", default=["decayed", "trunk"])
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    grids = read_grids(options.file)
    for family, noise in measure_noise(grids).items():
        print(f"{family}: standard deviation of the difference of two runs {noise:.3f} nats")
    print()
    print_row("settings", "judged", "family", *COLUMNS)
    print_row(*["---"] * (3 + len(COLUMNS)))
    for name, (settings, keep, _) in PLANS.items():
        for judge in options.judge:
            found = run_all([grid for grid in grids if has_rungs(grid, settings, keep)], settings, keep, judge)
            for family in [*TRIVIAL, "both"]:
                of = [search for search in found if family in (search.grid.family, "both")]
                if of:
                    print_row(name, judge, family, *summarise(of))
    print("\nArms by their best rate, judged after a decay:\n")
    print_row("settings", "best rate", *COLUMNS)
    print_row(*["---"] * (2 + len(COLUMNS)))
    for name, (settings, keep, _) in PLANS.items():
        found = run_all([grid for grid in grids if has_rungs(grid, settings, keep)], settings, keep, "decayed")
        for word, of in split_by_rate(found).items():
            if of:
                print_row(name, word, *summarise(of))


def split_by_rate(searches: Sequence[Search]) -> dict[str, list[Search]]:
    """Return the searches of arms whose best rate, the geometric mean over seeds, is below the median of its family,
    and those of arms where it is above."""
    best: dict[tuple[str, str], float] = {}
    for grid in {id(one.grid): one.grid for one in searches}.values():
        own = [math.log(one.best) for one in searches if one.grid is grid]
        best[grid.family, grid.arm] = statistics.fmean(own)
    middle = {family: statistics.median(rate for (of, _), rate in best.items() if of == family) for family, _ in best}
    low = [one for one in searches if best[one.grid.family, one.grid.arm] < middle[one.grid.family]]
    high = [one for one in searches if best[one.grid.family, one.grid.arm] > middle[one.grid.family]]
    return {"below the median": low, "above the median": high}


if __name__ == "__main__":
    main()
