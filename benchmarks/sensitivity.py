"""How often a difference of learning-rate sensitivity is claimed where there is none, and seen where there is one:
simulated sweeps over a grid of rates, through the engine.

    python benchmarks/sensitivity.py
    python benchmarks/sensitivity.py --times 200 --seeds 5

Four arms, of which three are compared with the first, at six rates. Prints for each truth and number of seeds the share
of sweeps with a claim about an arm that does not differ, and the share of arms that do differ of which it is claimed.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import optuna
from simulation.sweeps import simulate

from ablate.cli.arguments import parse_positive
from ablate.reports.sensitivity import compare_sensitivities
from ablate.sweeps.spec.sweep import Sweep

ARMS = ("pre", "post", "mix", "deepnorm")
RATES = [1e-3 * 2**k for k in range(6)]
INITIAL, TRIVIAL = 5.5, 3.3


@dataclass(frozen=True)
class Truth:
    """Losses over the rate, a valley at 0.006 with sides of 0.3 nats a decade squared, and how seeds vary."""

    own: float = 0.03
    """Standard deviation of each run, in nats."""
    wandering: float = 0.0
    """Standard deviation of a seed's own best rate, in doublings."""
    failing: float = 0.0
    """Probability that a run at the two highest rates gets stuck."""
    steeper: float = 1.0
    """Factor on the sides of the last arm."""

    def end(self, arm: str, params: Mapping[str, Any], seed: int, entropy: int) -> float:
        """Return the loss at the end of a run."""
        rate = params["optimizer.lr"]
        own, each = random.Random(f"{entropy} {arm} {seed} {rate}"), random.Random(f"{entropy} {arm} {seed}")
        if rate > RATES[3] and own.random() < self.failing:
            return TRIVIAL
        best = math.log10(6e-3) + self.wandering * math.log10(2) * each.gauss(0, 1)
        side = 0.3 * (self.steeper if arm == ARMS[-1] else 1.0)
        return 2.0 + side * (math.log10(rate) - best) ** 2 + self.own * own.gauss(0, 1)


TRUTHS = {
    "equal": Truth(),
    "equal, each seed its own best rate": Truth(wandering=0.5),
    "equal, a tenth stuck at high rates": Truth(failing=0.1),
    "equal, half stuck at high rates": Truth(failing=0.5),
    "one arm 1.5 times as steep": Truth(steeper=1.5),
    "one arm twice as steep": Truth(steeper=2.0),
}


def build_sweep(seeds: int) -> Sweep:
    """Return the sweep whose points are trained."""
    return Sweep.from_tree(
        {
            "name": "rates",
            "arms": {arm: {"norm": arm} for arm in ARMS},
            "search": {"optimizer.lr": RATES},
            "sampler": "grid",
            "confirm": {"at": "grid", "seeds": seeds},
        }
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=parse_positive, default=300)
    parser.add_argument("--seeds", type=parse_positive, nargs="+", default=[5, 8])
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print(f"{'truth':36} seeds  wrong   seen")
    for name, truth in TRUTHS.items():
        for seeds in options.seeds:
            spec, wrong, seen = build_sweep(seeds), 0, 0
            for entropy in range(options.times):
                record = simulate(
                    spec,
                    partial(truth.end, entropy=entropy),
                    optuna.storages.InMemoryStorage(),
                    trivial_loss=TRIVIAL,
                )
                known = compare_sensitivities(replace(record, initial_loss=INITIAL))
                claimed = {pair.row for pair in known.differences if pair.word != "not shown"} if known else set()
                differs = {ARMS[-1]} if truth.steeper != 1 else set()
                wrong += bool(claimed - differs)
                seen += len(claimed & differs)
            shares = f"{wrong / options.times:7.1%}" + (f"{seen / options.times:7.1%}" if truth.steeper != 1 else "")
            print(f"{name:36} {seeds:5}{shares}", flush=True)


if __name__ == "__main__":
    main()
