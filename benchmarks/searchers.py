"""Which sampler finds good settings in a few trials: searches of recorded validation losses, without training.

    python benchmarks/searchers.py                                    # as docs/explanation/samplers.md, in minutes
    python benchmarks/searchers.py --workers 2 --samplers tpe gp random
    python benchmarks/searchers.py --repeats 1 --samplers random      # in seconds

The losses are those of benchmarks/data/curves.csv (benchmarks/record_curves.py) at 13 learning rates, between them
linear in the logarithm of the rate. A search asks and tells through the code of a sweep (`ArmTrials`) on the curve of
one seed, as a sweep does, and is judged by the settings that were best after so many trials: by their loss on that seed
minus the smallest of the curve (the search itself), and by the mean loss on the other seeds minus the smallest of their
mean (what the settings are worth). Every search has a sampler seed of its own, the same for all samplers.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from ablate.plots.drawing import save
from ablate.plots.figure import Axis, Figure, Panel, Part, list_entries
from ablate.plots.marks import Line, Mark, Points
from ablate.plots.style import choose_looks
from ablate.scheduler.queue import Queue
from ablate.scheduler.studies import create_study, name_study
from ablate.scheduler.tasks import Task
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.procedures import Result
from ablate.verdict.intervals import bound_mean

FILE = Path(__file__).with_name("data") / "curves.csv"
BUDGETS = (6, 12, 24)
RATES = {"low": 1e-4, "high": 1e-1, "log": True}
SHARES = {"mix": 0.25, "mix 0.5": 0.5, "mix 0.75": 0.75, "mix 1": 1.0}  # arm -> norm.alpha
SPACES: dict[str, dict[str, Any]] = {
    "language": {"optimizer.lr": RATES},
    "vision": {"optimizer.lr": RATES},
    "language, with alpha of Mix-LN": {"optimizer.lr": RATES, "norm.alpha": list(SHARES.values())},
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "tpe": {"kind": "tpe", "n_startup_trials": 5},
    "tpe, 3 random": {"kind": "tpe", "n_startup_trials": 3},
    "gp": {"kind": "gp", "n_startup_trials": 5},
    "gp, 3 random": {"kind": "gp", "n_startup_trials": 3},
    "random": {"kind": "random"},
    "grid": {},  # of each budget
}
Point = Mapping[str, Any]


@dataclass(frozen=True)
class Curve:
    """The final losses of one arm of a task, or of several that a second setting tells apart."""

    task: str
    arms: tuple[str, ...]
    losses: Mapping[str, np.ndarray]
    """Arm -> losses, of shape (seeds, rates); infinite if the run diverged."""
    logs: np.ndarray
    """Logarithms of the rates, ascending."""

    def list_means(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the mean over some seeds at each recorded rate, of each arm."""
        return {arm: self.losses[arm][list(seeds)].mean(0) for arm in self.arms}

    def read(self, point: Point, seeds: Sequence[int]) -> float:
        """Return the mean loss of some seeds at a point, linear between the recorded rates."""
        arm = next((arm for arm in self.arms if SHARES.get(arm) == point.get("norm.alpha")), self.arms[0])
        return float(np.interp(math.log(point["optimizer.lr"]), self.logs, self.list_means(seeds)[arm]))

    def measure_regret(self, point: Point, seeds: Sequence[int]) -> float:
        """Return the mean loss of some seeds at a point, minus the smallest of all recorded points."""
        return self.read(point, seeds) - min(float(means.min()) for means in self.list_means(seeds).values())

    def measure_noise(self) -> float:
        """Return the standard deviation over seeds at the recorded point with the least mean."""
        best = min(self.arms, key=lambda arm: self.losses[arm].mean(0).min())
        return float(self.losses[best].std(0, ddof=1)[self.losses[best].mean(0).argmin()])

    @property
    def seeds(self) -> list[int]:
        """The recorded seeds, from 0."""
        return list(range(len(self.losses[self.arms[0]])))


def read_curves(file: Path = FILE) -> list[Curve]:
    """Return the curves of the file, those of a second setting last."""
    ends: dict[str, dict[str, dict[int, dict[float, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["ending"]:
                loss = math.inf if row["ending"] == "diverged" else float(row["loss"])
                ends[row["task"]][row["arm"]][int(row["seed"])][float(row["lr"])] = loss
    curves = []
    for task, arms in ends.items():
        logs = np.log(sorted(next(iter(arms["pre"].values()))))
        losses = {
            arm: np.array([[loss for _, loss in sorted(by_rate.items())] for _, by_rate in sorted(by_seed.items())])
            for arm, by_seed in arms.items()
        }
        curves += [Curve(task, (arm,), losses, logs) for arm in arms if arm not in SHARES or arm == "mix"]
        if len(shares := tuple(arm for arm in arms if arm in SHARES)) == len(SHARES):
            curves.append(Curve(f"{task}, with alpha of Mix-LN", shares, losses, logs))
    return curves


def search(spec: Sweep, objective: Callable[[Point], float], workers: int) -> list[Point]:
    """Return the points of a search in the order in which they end, asked and told as a sweep of so many workers does
    whose trials take equally long."""
    storage = optuna.storages.InMemoryStorage()
    arm = next(iter(spec.all_arms))
    create_study(storage, name_study(spec.name, 1, arm), spec)
    queue, running = Queue(storage, spec.name, 1, spec), list[Task]()
    while True:
        while len(running) < workers and (task := queue.take()):
            running.append(task)
        if not running:
            return [run.params for run in queue.studies.read().search(arm)]
        task = running.pop(0)
        loss = objective(task.params)
        status = "completed" if math.isfinite(loss) else "diverged"
        task.record_result(Result(status, {"val/loss": loss}, step=1, run_id=None, seconds=0.0))


def build_spec(task: str, sampler: Mapping[str, Any], trials: int, space: Mapping[str, Any] | None = None) -> Sweep:
    """Return the sweep that searches a curve of `task`; `space`: in the place of the usual one."""
    tree = {
        "name": "searched",
        "experiment": {"norm": "mix"},  # which has an alpha; nothing is trained
        "search": space or SPACES[task],
        "sampler": sampler,
        "budget": {"trials": trials},
        "objective": {"metric": "val/loss", "direction": "minimize"},
    }
    return Sweep.from_tree(tree)


@dataclass(frozen=True)
class Course:
    """What a sampler has found on one seed of a curve after each trial, as means over its repetitions."""

    own: np.ndarray
    """Regret on the seed that is searched, of shape (trials,)."""
    others: np.ndarray
    """Regret on the other seeds."""
    within: np.ndarray
    """Share of the searches whose regret on the others is at most the standard deviation of a seed."""


def judge(curve: Curve, seed: int, searches: Sequence[Sequence[Point]]) -> Course:
    """Return what the searches of one seed of a curve have found after each trial."""
    others, noise = [other for other in curve.seeds if other != seed], curve.measure_noise()
    own, elsewhere = [], []
    for points in searches:
        losses = [curve.read(point, [seed]) for point in points]
        best = [int(np.argmin(losses[: count + 1])) for count in range(len(points))]
        own.append([curve.measure_regret(points[i], [seed]) for i in best])
        elsewhere.append([curve.measure_regret(points[i], others) for i in best])
    return Course(np.mean(own, 0), np.mean(elsewhere, 0), np.mean(np.array(elsewhere) <= noise, 0))


def run_searches(curve: Curve, seed: int, sampler: Mapping[str, Any], own: range, workers: int) -> list[list[Point]]:
    """Return the points of the searches of one seed of a curve, one for each of the sampler's `own` seeds."""
    specs = [build_spec(curve.task, {**sampler, "seed": number}, max(BUDGETS)) for number in own]
    return [search(spec, lambda point: curve.read(point, [seed]), workers) for spec in specs]


def search_grids(curve: Curve, seed: int) -> Course:
    """Return what the grids of the budgets find: evenly spaced rates, as many at each value of a second setting. The
    course is that of the largest budget that fits in so many trials."""
    own, others, within = (np.full(max(BUDGETS), math.nan) for _ in range(3))
    for budget in BUDGETS:
        rates = {**RATES, "num": budget // len(curve.arms)}
        if rates["num"] < 2:
            continue
        space = {**SPACES[curve.task], "optimizer.lr": rates}
        points = search(build_spec(curve.task, {"kind": "grid"}, budget, space), lambda p: curve.read(p, [seed]), 1)
        course = judge(curve, seed, [points])
        for whole, part in ((own, course.own), (others, course.others), (within, course.within)):
            whole[budget - 1 :] = part[-1]
    return Course(own, others, within)


Courses = dict[str, dict[str, list[Course]]]
"""Task -> sampler -> the courses of all seeds of all of its curves."""


def measure(curves: Sequence[Curve], samplers: Sequence[str], repeats: int, workers: int) -> Courses:
    """Return what the samplers find."""
    courses: Courses = defaultdict(lambda: defaultdict(list))
    for name in samplers:
        begin = time.monotonic()
        searched = [(curve, seed) for curve in curves for seed in curve.seeds]
        for number, (curve, seed) in enumerate(searched):
            own = range(number * repeats, (number + 1) * repeats)
            course = (
                search_grids(curve, seed)
                if name == "grid"
                else judge(curve, seed, run_searches(curve, seed, SAMPLERS[name], own, workers))
            )
            courses[curve.task][name].append(course)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    return courses


def format_estimate(values: Sequence[float]) -> str:
    """Return a mean over curves with its 95 % interval; "-" where there is none."""
    if not all(map(math.isfinite, values)):
        return "-"
    estimate = bound_mean(values, 0.05)
    return f"{estimate.mean:.3f}" + (f" ± {estimate.half_width:.3f}" if estimate.half_width else "")


def format_means(rows: Sequence[np.ndarray], scale: float, digits: int) -> str:
    """Return the means over curves at each budget, times `scale`."""
    means = [scale * statistics.fmean(row[budget - 1] for row in rows) for budget in BUDGETS]
    return ", ".join("-" if math.isnan(mean) else f"{mean:.{digits}f}" for mean in means)


def print_table(courses: Courses) -> None:
    """Print what was measured as Markdown."""
    columns = ["task", "sampler", *(f"{budget} trials" for budget in BUDGETS)]
    columns += ["difference to tpe", "on other seeds", "within a seed's noise [%]"]
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for task, by_sampler in courses.items():
        for name, found in by_sampler.items():
            cells = [task, name, *(format_estimate([course.own[budget - 1] for course in found]) for budget in BUDGETS)]
            base = by_sampler.get("tpe", []) if name != "tpe" else []
            pairs = list(zip(found, base, strict=False))
            cells.append(
                "; ".join(format_estimate([a.own[b - 1] - t.own[b - 1] for a, t in pairs]) for b in BUDGETS if pairs)
            )
            cells.append(format_means([course.others for course in found], 1, 3))
            cells.append(format_means([course.within for course in found], 100, 0))
            print(f"| {' | '.join(cells)} |")


def draw(courses: Courses, file: Path) -> None:
    """Write the figure, as SVG and PNG: mean regret on the searched seed after each trial, a panel for each task."""
    looks = choose_looks(name for name in SAMPLERS if any(name in found for found in courses.values()))
    across = Axis("trials", ticks={budget: str(budget) for budget in (1, *BUDGETS)})
    panels: list[Panel] = []
    for task, by_sampler in courses.items():
        marks: list[Mark] = []
        for name, found in by_sampler.items():
            means = np.mean([course.own for course in found], 0)
            colour, marker = looks[name]
            marks.append(Points(BUDGETS, [means[budget - 1] for budget in BUDGETS], colour, marker, 5))
            if name != "grid":
                marks.append(Line(range(1, len(means) + 1), means.tolist(), colour, 1.2))
        upwards = Axis("" if panels else "regret [nats], mean over curves", log=True)
        panels.append(Panel(marks, across, upwards, task))
    size = (3.4 * len(courses), 3.6)
    save(Figure(file.stem, "", [Part(panels, len(panels))], entries=list_entries(looks), size=size), file.parent)


def main() -> None:
    """Print the table, and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10, help="seeds of each sampler on each seed of each curve")
    parser.add_argument("--workers", type=int, default=1, help="trials at a time")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--file", type=Path, default=FILE, help="the recorded curves")
    parser.add_argument("--figure", type=Path, help="where the figure is written")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", module="optuna")
    courses = measure(read_curves(options.file), options.samplers, options.repeats, options.workers)
    print_table(courses)
    if options.figure:
        draw(courses, options.figure)


if __name__ == "__main__":
    main()
