"""What sweeps claim of arms that are equal, what their intervals hold, and what they find of arms that are not.

    python benchmarks/verdict.py --sweeps 2000            # as docs/explanation/verdict-simulation.md, in hours
    python benchmarks/verdict.py --sweeps 200 --samplers grid --comparisons 1
    python benchmarks/verdict.py --sweeps 2000 --samplers "2 points" --comparisons 2

Whole sweeps without training: search, choice among candidates, fresh seeds, challenges and verdict are the engine's.
What follows the search is replayed; TPE and the Gaussian process search through Optuna. All arms have the same floor
and fail equally often, so that every claim that one is better, worse or fails more often is false.

Where the noise of the baseline alone has a tail, either the means of the arms are equal or the medians of the paired
differences. "false claims" are about the typical seed, as the sentences are: the sign of that median. "on average" are
false claims about the mean, which the sentences tie to the assumption that no rare seed ends far off.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from simulation.losses import Valley, draw_normal, draw_uniform
from simulation.sweeps import replay, simulate

from ablate.sweeps.search.space import Range
from ablate.sweeps.spec.parts import Confirm
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.comparison import Compared

TRIVIAL = 3.0  # loss, a nat above the floor
CLAIMS = (
    *("better", "worse", "mixed", "fails more often", "fails less often"),
    *("better on most seeds", "worse on most seeds"),
)
MOST = 7  # comparisons
OWN = 0.01  # standard deviation of a training's own noise


@dataclass(frozen=True)
class Noisy(Valley):
    """A valley whose trainings fail with probability `fails`, and whose own noise may have heavy tails."""

    kind: str = "normal"
    """normal, t3, stuck or diverging; lognormal or outliers in the baseline alone."""
    tail: float = 0.0
    """Of lognormal noise the standard deviation of its logarithm; the share of outliers, which end 50 standard
    deviations higher."""
    equal: str = "means"
    """What the arms have in common: means, or medians of the paired differences."""
    fails: float = 0.0
    apart: float = 0.0
    """How many decades the best rate of the baseline is below that of the other arms. Only that of the baseline then
    drifts: of the recorded placements, those with low best rates did."""

    def find_best_rate(self, arm: str) -> float:
        return self.best_lr * 10 ** ((-0.5 if arm == "arm0" else 0.5) * self.apart)

    def find_drift(self, arm: str) -> float:
        return self.drift if arm == "arm0" or not self.apart else 0.0

    def at(self, share: float, arm: str, params: Mapping[str, Any], seed: int) -> float:
        key = (self.entropy, seed, arm, params["optimizer.lr"])
        if draw_uniform("fails", *key)[0] < self.fails and draw_uniform("when", *key)[0] < share:
            return TRIVIAL + self.start if self.kind == "stuck" else math.inf
        return super().at(share, arm, params, seed)

    def __call__(self, arm: str, params: Mapping[str, Any], seed: int) -> float:
        key = (self.entropy, seed, arm, params["optimizer.lr"])
        if draw_uniform("fails", *key)[0] < self.fails:
            return TRIVIAL if self.kind == "stuck" else math.inf
        common = self.shared * draw_normal(self.entropy, seed)
        noise = draw_normal(*key)
        if self.kind == "t3":  # of the same standard deviation
            noise /= math.sqrt(sum(draw_normal(i, *key) ** 2 for i in range(3)))
        if self.tail and arm == "arm0":
            noise = float(add_tail(self.kind, self.tail, noise, draw_uniform("tail", *key)[0]))
            noise -= find_centres(self.kind, self.tail)[self.equal == "medians"]
        return self.mean(arm, params) + common + self.own * noise

    def find_truths(self) -> tuple[float, float]:
        """Return the mean and the median of the paired difference of an arm to the baseline that is as good, in
        standard deviations of its own noise."""
        if not self.tail:
            return 0.0, 0.0
        mean, median = find_centres(self.kind, self.tail)
        return (0.0, mean - median) if self.equal == "means" else (median - mean, 0.0)


def add_tail(kind: str, tail: float, normal: Any, uniform: Any) -> Any:
    """Return noise with a tail above it, from normal numbers and numbers between 0 and 1."""
    if kind == "lognormal":
        return np.exp(tail * normal) / (math.exp(tail**2 / 2) * math.sqrt(math.expm1(tail**2)))
    return normal + 50.0 * (uniform < tail)


@lru_cache(maxsize=64)
def find_centres(kind: str, tail: float) -> tuple[float, float]:
    """Return the mean of noise with a tail, and the median of its difference to normal noise."""
    random = np.random.default_rng(0)
    normal, uniform, other = random.standard_normal(10**6), random.random(10**6), random.standard_normal(10**6)
    noise = add_tail(kind, tail, normal, uniform)
    mean = 50.0 * tail if kind == "outliers" else 1 / math.sqrt(math.expm1(tail**2))
    return mean, float(np.median(noise - other))


NOISES: dict[str, dict[str, Any]] = {
    "normal": {},
    "t3": {"kind": "t3"},
    **{f"stuck {q}": {"kind": "stuck", "fails": q} for q in (0.1, 0.2, 0.3, 0.4, 0.5)},
    **{f"diverging {q}": {"kind": "diverging", "fails": q} for q in (0.1, 0.3, 0.5)},
    **{
        f"{kind} {tail}, equal {equal}": {"kind": kind, "tail": tail, "equal": equal}
        for kind, tails in (("lognormal", (0.5, 1.0)), ("outliers", (0.05, 0.1, 0.2, 0.3)))
        for tail in tails
        for equal in ("means", "medians")
    },
}
LOOKS: dict[str, dict[str, Any]] = {
    "one look at 5": {"seeds": 5},
    "a look after each of 3 to 12": {"seeds": {"min": 3, "max": 12}, "effect": 1e-6},
    "5, then one more until a claim, to 20": {"seeds": 5},
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "grid": {"sampler": "grid", "search": {"optimizer.lr": [1e-3, 2e-3, 4e-3, 8e-3]}},
    "2 points": {"sampler": "grid", "search": {"optimizer.lr": [1e-3, 8e-3]}},  # and each of them is tested
    "random": {"sampler": {"kind": "random"}, "budget": {"trials": 6}},
    "tpe": {"sampler": {"kind": "tpe", "n_startup_trials": 3}, "budget": {"trials": 6}},
    "gp": {"sampler": {"kind": "gp", "n_startup_trials": 3}, "budget": {"trials": 6}},
}
NINE: dict[str, Any] = {"low": 3e-4, "high": 3e-2, "log": True, "num": 9}
WSD = {"schedule": {"kind": "wsd", "warmup_fraction": 0.01, "decay_fraction": 0.1}}
BY_RUNGS: dict[str, Any] = {"search": {"method": "rungs", "optimizer.lr": NINE}, "sampler": "grid"}
SAMPLERS |= {
    "nine": {"sampler": "grid", "search": {"optimizer.lr": NINE}},
    "nine by rungs": BY_RUNGS,
    "nine, best rates apart": {"sampler": "grid", "search": {"optimizer.lr": NINE}},
    "nine by rungs, best rates apart": BY_RUNGS,
}
EARLY: dict[str, Any] = {"drift": 0.25, "early": 1.7}
"""Of a run at a rung, as on recorded grids (docs/explanation/rungs.md)."""
VALLEYS: dict[str, dict[str, Any]] = {
    name: {**EARLY, "apart": 0.5 if "apart" in name else 0.0} for name in SAMPLERS if name.startswith("nine")
}
LEARNING = ("tpe", "gp")  # samplers whose points depend on what is found


def build_spec(sampler: str, looks: str, comparisons: int, seed: int) -> Sweep:
    """Return a sweep of `comparisons` arms besides the baseline."""
    arms = {
        f"arm{i}": {"norm": "pre" if i == 0 else {"kind": "mix", "first_layers": i}} for i in range(comparisons + 1)
    }
    tree: dict[str, Any] = {
        "name": "simulated",
        "experiment": {"model.layers": 12, **WSD},
        "arms": arms,
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "confirm": LOOKS[looks],
        **SAMPLERS[sampler],
    }
    if sampler == "2 points":
        tree["confirm"] = {**LOOKS[looks], "at": "grid"}
    elif tree["sampler"] != "grid":
        tree["sampler"] = {**tree["sampler"], "seed": seed}
    return Sweep.from_tree(tree)


def add_a_seed(spec: Sweep, compared: Mapping[str, Compared]) -> Sweep | None:
    """Return the sweep with one more fresh seed: what somebody does who stops when an arm is claimed to differ."""
    seeds = spec.confirm.most_seeds
    if seeds >= 20 or any(c.kind in CLAIMS for c in compared.values()):
        return None
    return spec.model_copy(update={"confirm": spec.confirm.model_copy(update={"seeds": seeds + 1})})


def run_sweep(sampler: str, looks: str, comparisons: int, valley: Noisy) -> dict[str, Compared]:
    """Return what one simulated sweep concludes."""
    spec = build_spec(sampler, looks, comparisons, valley.entropy)
    then: Callable[..., Sweep | None] = add_a_seed if "until" in looks else lambda spec, compared: None
    return replay(spec, valley, list_points(sampler, spec, valley), trivial_loss=TRIVIAL, then=then)


def list_points(sampler: str, spec: Sweep, valley: Noisy) -> dict[str, list[dict[str, Any]]]:
    """Return the settings that each arm's search tries."""
    entropy = valley.entropy
    if spec.at_grid:
        return {}
    if sampler in LEARNING:
        searched = _search(sampler, valley.kind, valley.fails, tuple(valley.floors.values()), entropy)
        return {arm: searched[arm] for arm in spec.all_arms}
    rates = SAMPLERS["grid"]["search"]["optimizer.lr"]
    if sampler in VALLEYS:
        rates = Range(**NINE).grid()
    if sampler == "random":  # the same points for each arm, as the sampler's seed is the same
        rates = [10 ** (-3 + draw_uniform("rate", entropy, i)[0]) for i in range(6)]
    return {arm: [{"optimizer.lr": rate} for rate in rates] for arm in spec.all_arms}


@lru_cache(maxsize=5000)
def _search(
    sampler: str, kind: str, fails: float, floors: tuple[float, ...], entropy: int
) -> dict[str, list[dict[str, Any]]]:
    """Return what a learning sampler tries for each arm. It depends on the tuning seed alone, and so not on looks or
    other arms."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    valley = Noisy(
        {f"arm{i}": floor for i, floor in enumerate(floors)}, own=OWN, entropy=entropy, kind=kind, fails=fails
    )
    spec = build_spec(sampler, next(iter(LOOKS)), len(floors) - 1, entropy)
    search = spec.model_copy(update={"confirm": Confirm()})
    searched = simulate(search, valley, optuna.storages.InMemoryStorage(), trivial_loss=TRIVIAL)
    return {
        arm: [trial.params for trial in trials]
        for arm, trials in ((arm, searched.search(arm)) for arm in searched.arms)
    }


def is_right(claim: Compared, truth: float) -> bool:
    """Return whether a claim has the sign of the true difference."""
    return bool(truth) and claim.versus is not None and claim.versus.side == truth and "fails" not in claim.kind


def measure(sampler: str, noise: str, looks: str, comparisons: int, sweeps: int, better: float = 0.0) -> dict[str, Any]:
    """Return shares over `sweeps` simulated sweeps. `better`: by how many standard deviations of a paired difference
    the first arm is truly better."""
    counts: defaultdict[str, float] = defaultdict(float)
    gap = better * OWN * math.sqrt(2)
    floors = {f"arm{i}": 2.0 - (gap if i == 1 else 0.0) for i in range(MOST + 1)}
    for entropy in range(sweeps):
        valley = Noisy(floors, own=OWN, entropy=entropy, **NOISES[noise], **VALLEYS.get(sampler, {}))
        if sampler in VALLEYS:  # anywhere between two rates of the grid
            rate = valley.best_lr * 10 ** (0.25 * (draw_uniform("best rate", entropy)[0] - 0.5))
            valley = replace(valley, best_lr=rate)
        compared = run_sweep(sampler, looks, comparisons, valley)
        spec = build_spec(sampler, looks, comparisons, entropy)
        names = {arm: spec.cells[arm].arm if spec.at_grid else arm for arm in compared}
        others = {arm: c for arm, c in compared.items() if names[arm] != "arm0"}
        base = compared[spec.baselines[next(iter(others))]]
        first = [c.kind for arm, c in others.items() if names[arm] == "arm1"]
        counts["sweeps"] += 1
        mean, median = (math.copysign(1, truth) if truth else 0 for truth in valley.find_truths())
        counts["claims"] += any(c.kind in CLAIMS and not is_right(c, median) for c in others.values())
        counts["on average"] += any(
            c.kind in CLAIMS and "on most seeds" not in c.kind and not is_right(c, mean) for c in others.values()
        )
        counts["found"] += sum(kind.startswith("better") for kind in first) / len(first)
        counts["facts"] += any("fails on all seeds" in c.kind for c in others.values())
        counts["seeds"] += len(base.outcomes)
        for arm, c in others.items():
            if c.difference and c.difference.interval:
                truth = valley.mean(names[arm], c.params) - valley.mean("arm0", compared[spec.baselines[arm]].params)
                counts["differences"] += 1
                counts["differences held"] += c.difference.interval[0] <= truth <= c.difference.interval[1]
            if c.estimate and c.estimate.interval:
                counts["means"] += 1
                low, high = c.estimate.interval
                counts["means held"] += low <= valley.mean(names[arm], c.params) <= high
            if c.failures:
                counts["shares"] += 1
                counts["shares held"] += c.failures.low <= valley.fails <= c.failures.high
    return {
        "claims": counts["claims"] / sweeps,
        "on average": counts["on average"] / sweeps,
        "found": counts["found"] / sweeps,
        "facts": counts["facts"] / sweeps,
        "seeds": counts["seeds"] / sweeps,
        **{
            what: counts[f"{what} held"] / counts[what] if counts[what] else math.nan
            for what in ("differences", "means", "shares")
        },
    }


def list_cells(options: argparse.Namespace) -> Iterator[tuple[str, str, str, int]]:
    """Yield sampler, noise, looks and number of comparisons of each row."""
    for sampler in options.samplers:
        for noise in options.noises:
            for looks in options.looks:
                for comparisons in options.comparisons:
                    yield sampler, noise, looks, comparisons


def main() -> None:
    """Print the table as Markdown, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=2000, help="simulated sweeps of each row")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--noises", nargs="+", default=list(NOISES), choices=list(NOISES))
    parser.add_argument("--looks", nargs="+", default=list(LOOKS), choices=list(LOOKS))
    parser.add_argument("--comparisons", nargs="+", type=int, default=[1, 3, 7])
    parser.add_argument("--better", type=float, default=0.0, help="true lead of one arm, in sd of a paired difference")
    options = parser.parse_args()
    begin = time.monotonic()
    last = "found" if options.better else "false claims"
    print(f"| search | outcomes | looks | comparisons | {last} | on average | difference | mean | failures | seeds |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for sampler, noise, looks, comparisons in list_cells(options):
        row = measure(sampler, noise, looks, comparisons, options.sweeps, options.better)
        shares = [
            f"{100 * row[key]:.1f} %"
            for key in ("found" if options.better else "claims", "on average", "differences", "means", "shares")
        ]
        print(
            f"| {sampler} | {noise} | {looks} | {comparisons} | {' | '.join(shares)} | {row['seeds']:.1f} |", flush=True
        )
    print(f"\n{options.sweeps} sweeps a row, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
