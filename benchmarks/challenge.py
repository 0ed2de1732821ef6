"""What sweeps claim of equal arms whose best settings differ, without and with the challenge, and what that costs.

    python benchmarks/challenge.py --sweeps 200             # as docs/explanation/verdict-simulation.md
    python benchmarks/challenge.py --sweeps 100 --valleys apart steep --searches "gp, two" --seeds "3 to 12"

Whole sweeps without training, through the stages of the engine (`simulation.sweeps.replay_design`); TPE and the
Gaussian process search through Optuna. Each arm's best settings are drawn alone, and all arms have the same floor, so
that every claim that one is better or worse "each at its own best" is false. In the second figure of each pair one arm
is truly better, by `--better` standard deviations of a paired difference.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import optuna
from simulation.losses import draw_normal, draw_uniform
from simulation.sweeps import replay_design, simulate
from verdict import CLAIMS, NOISES, OWN, TRIVIAL, Noisy

from ablate.sweeps.search.space import Range, list_cells
from ablate.sweeps.spec.parts import Confirm
from ablate.sweeps.spec.sweep import Sweep

LR, DECAY, STD = "optimizer.lr", "optimizer.weight_decay", "init.std"
RATES: dict[str, Any] = {"low": 5e-4, "high": 3.2e-2, "log": True, "num": 7}
DECAYS: dict[str, Any] = {"low": 0.02, "high": 0.32, "log": True, "num": 5}
STDS: dict[str, Any] = {"low": 0.02, "high": 0.64, "log": True, "num": 6}
MIDDLES = {LR: 4e-3, DECAY: 0.08, STD: 0.113}  # of the ranges, whose steps are factors of two


@dataclass(frozen=True)
class Tuned(Noisy):
    """A valley for each arm, with a place of its own; `curvature` is that of one step, in standard deviations."""

    steep: float = 1.0
    """How many times as steep the valleys of all arms but the baseline are."""
    shape: str = "parabola"
    """parabola; bent: the curvature is 1.4 on one side and 0.6 on the other; exponential: it grows by 1.8 a step."""
    places: Mapping[str, tuple[float, ...]] | None = None
    """Arm -> steps of its best settings from the middle of each range."""

    def mean(self, arm: str, params: Mapping[str, Any]) -> float:
        steep = self.curvature * (1.0 if arm == "arm0" else self.steep)
        value = self.floors[arm]
        for (path, middle), place in zip(MIDDLES.items(), (self.places or {})[arm], strict=True):
            if path in params:
                value += OWN * steep * self.bend(math.log2(params[path] / middle) - place)
        return value

    def bend(self, steps: float) -> float:
        """Return the loss so many steps from the best settings, for a curvature of 1."""
        if self.shape == "exponential":
            return (math.exp(0.6 * steps) - 1 - 0.6 * steps) / 0.18
        return steps**2 * (1.0 if self.shape == "parabola" else 1.4 if steps > 0 else 0.6)


VALLEYS: dict[str, dict[str, Any]] = {
    "alike": {"apart": 0.0},
    "flat": {"apart": 1.0, "curvature": 0.2},
    "apart": {"apart": 1.0},
    "half a step off": {"off": 0.5},
    "half a step off, steep": {"off": 0.5, "steep": 5.0},
    "steep": {"apart": 1.0, "steep": 5.0},
    "very steep": {"apart": 1.0, "steep": 25.0},
    "bent, very steep": {"apart": 1.0, "steep": 25.0, "shape": "bent"},
    "exponential, very steep": {"apart": 1.0, "steep": 25.0, "shape": "exponential"},
    "beyond the range": {"off": 4.3, "curvature": 2.0},
}
SEARCHES: dict[str, dict[str, Any]] = {
    "grid": {"sampler": "grid", "search": {LR: RATES}},
    "two": {"sampler": "grid", "search": {LR: RATES, DECAY: DECAYS}},
    "random": {"sampler": "random", "search": {LR: {**RATES, "num": None}}, "budget": {"trials": 8}},
    "tpe": {"sampler": "tpe", "search": {LR: {**RATES, "num": None}}, "budget": {"trials": 8}},
    "gp": {"sampler": "gp", "search": {LR: {**RATES, "num": None}}, "budget": {"trials": 8}},
    "gp, two": {"sampler": "gp", "search": {LR: RATES, DECAY: DECAYS}, "budget": {"trials": 24}},
}
SEARCHES["three, drawn"] = {**SEARCHES["two"], "search": {**SEARCHES["two"]["search"], STD: STDS}, "sampler": "gp"}
SEARCHES["three, drawn"]["budget"] = {"trials": 40}  # drawn as `draw_trials` says, as the process takes minutes
LEARNING = ("tpe", "gp", "gp, two")
SEEDS: dict[str, dict[str, Any]] = {
    **{str(n): {"seeds": n} for n in (5, 10, 16)},
    "3 to 12": {"seeds": {"min": 3, "max": 12}, "effect": 1e-6},
}
OFF = {"trials": 0, "extend": 0}


def build_spec(search: str, seeds: str, comparisons: int, challenge: Mapping[str, Any]) -> Sweep:
    """Return a sweep of `comparisons` arms besides the baseline."""
    arms = {f"arm{i}": {"norm": {"kind": "mix", "first_layers": i} if i else "pre"} for i in range(comparisons + 1)}
    tree = {"name": "simulated", "experiment": {"model.layers": 12}, "arms": arms, "confirm": SEEDS[seeds]}
    return Sweep.from_tree({**tree, **SEARCHES[search], "challenge": dict(challenge)})


def build_valley(valley: str, noise: str, comparisons: int, entropy: int, gap: float) -> Tuned:
    """Return the objective of one sweep, of which the first arm besides the baseline is better by `gap`."""
    fields = {"curvature": 1.0, **VALLEYS[valley]}
    apart, off = fields.pop("apart", 0.0), fields.pop("off", 0.0)
    places = {}
    for i in range(comparisons + 1):
        drawn = [apart * (draw_uniform("place", entropy, i, j)[0] - 0.5) for j in range(len(MIDDLES))]
        places[f"arm{i}"] = (drawn[0] + (off if i else 0.0), *drawn[1:])
    floors = {f"arm{i}": 2.0 - (gap if i == 1 else 0.0) for i in range(comparisons + 1)}
    return Tuned(floors, own=OWN, entropy=entropy, places=places, **fields, **NOISES[noise])


def list_points(search: str, spec: Sweep, valley: Tuned) -> dict[str, list[dict[str, Any]]]:
    """Return the settings that each arm's search tries."""
    if search in LEARNING:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = {"kind": SEARCHES[search]["sampler"], "seed": valley.entropy}
        tree = spec.model_copy(update={"confirm": Confirm()}).to_tree()
        alone = Sweep.from_tree({**tree, "sampler": sampler, "challenge": {}})
        found = simulate(alone, valley, optuna.storages.InMemoryStorage(), trivial_loss=TRIVIAL)
        return {arm: [run.params for run in found.search(arm)] for arm in found.arms}
    if search == "three, drawn":
        return {arm: draw_trials(valley, arm) for arm in spec.all_arms}
    if search == "random":  # the same points for each arm, as the sampler's seed is the same
        low, high = RATES["low"], RATES["high"]
        drawn = [draw_uniform("rate", valley.entropy, i)[0] for i in range(8)]
        return {arm: [{LR: float(f"{low * (high / low) ** u:.6g}")} for u in drawn] for arm in spec.all_arms}
    space = {path: Range(**entry) for path, entry in SEARCHES[search]["search"].items()}
    return dict.fromkeys(spec.all_arms, list_cells(space))


def draw_trials(valley: Tuned, arm: str) -> list[dict[str, float]]:
    """Return 40 settings: 15 anywhere, and 25 around the best, as a Gaussian process comes to them."""
    places, trials = (valley.places or {})[arm], []
    for i in range(40):
        params = {}
        for (path, middle), place in zip(MIDDLES.items(), places, strict=True):
            key = ("trial", valley.entropy, arm, path, i)
            near = place + 0.6 * draw_normal(*key)
            steps = 5 * draw_uniform(*key)[0] - 2.5 if i < 15 else min(2.5, max(-2.5, near))
            params[path] = float(f"{middle * 2**steps:.6g}")
        trials.append(params)
    return trials


def measure(cell: tuple[str, str, str, str, int], sweeps: int, better: float, trials: int) -> list[Counter]:
    """Return what so many sweeps claim and cost without and with the challenge; the others as in the options."""
    valley, search, noise, seeds, comparisons = cell
    specs = [build_spec(search, seeds, comparisons, challenge) for challenge in (OFF, {"trials": trials})]
    both: list[Counter] = [Counter() for _ in specs]
    for entropy in range(sweeps):
        objective = build_valley(valley, noise, comparisons, entropy, better * OWN * math.sqrt(2))
        points = list_points(search, specs[0], replace(objective, tail=0.0) if search in LEARNING else objective)
        for spec, counts in zip(specs, both, strict=True):
            ends = replay_design(spec, objective, points, trivial_loss=TRIVIAL)
            others = [c for arm, c in ends.compared.items() if arm != "arm0"]
            counts["false"] += any(c.kind in CLAIMS for c in (others[1:] if better else others))
            counts["found"] += others[0].kind.startswith("better")
            counts["unheld"] += any(c.challenge is not None and not c.challenge.held for c in others)
            counts["runs"] += len(ends.record.runs)
    return both


def main() -> None:
    """Print the table as Markdown, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=200, help="simulated sweeps of each figure")
    parser.add_argument("--valleys", nargs="+", default=list(VALLEYS), choices=list(VALLEYS))
    parser.add_argument("--searches", nargs="+", default=["grid"], choices=list(SEARCHES))
    parser.add_argument("--noises", nargs="+", default=["normal"], choices=list(NOISES))
    parser.add_argument("--seeds", nargs="+", default=["5", "10", "16", "3 to 12"], choices=list(SEEDS))
    parser.add_argument("--comparisons", nargs="+", type=int, default=[1])
    parser.add_argument("--better", type=float, default=1.2, help="true lead of one arm, in sd of a paired difference")
    parser.add_argument("--trials", type=int, default=6, help="tries of a loser, challenge.trials")
    options = parser.parse_args()
    begin = time.monotonic()
    print("| valleys | search | outcomes | seeds | comparisons | false without, with | found | not claimed | runs |")
    print("|---|---|---|---|---|---|---|---|---|")
    for cell in (
        (valley, search, noise, seeds, comparisons)
        for search in options.searches
        for noise in options.noises
        for comparisons in options.comparisons
        for seeds in options.seeds
        for valley in options.valleys
    ):
        off, on = measure(cell, options.sweeps, 0.0, options.trials)
        gaps = measure(cell, options.sweeps, options.better, options.trials)

        def show(both: list[Counter], key: str) -> str:
            return ", ".join(f"{100 * one[key] / options.sweeps:.1f}" for one in both) + " %"

        runs = ", ".join(f"{one['runs'] / options.sweeps:.0f}" for one in (off, on))
        shown = " | ".join([*map(str, cell), show([off, on], "false"), show(gaps, "found"), show([on], "unheld"), runs])
        print(f"| {shown} |", flush=True)
    print(f"\n{options.sweeps} sweeps a figure, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
