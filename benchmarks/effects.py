"""What factorial sweeps claim of components without effect, what their intervals hold, and what they find.

    python benchmarks/effects.py --sweeps 500                       # as docs/explanation/verdict-simulation.md
    python benchmarks/effects.py --sweeps 300 --main 1              # a true main effect, and --interaction 2
    python benchmarks/effects.py --sweeps 500 --scenarios "own rates" --looks "one look at 5"

Whole sweeps without training, of three components with two levels each: the search of each cell, choice among
candidates, fresh seeds, challenges and verdict are the engine's (`replay_design`). Without --main and
--interaction all cells have the same floor and fail equally often, so that every claim is false.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from simulation.losses import draw_normal
from simulation.sweeps import Conclusions, replay_design
from verdict import LOOKS, NOISES, OWN, SAMPLERS, TRIVIAL, Noisy

from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.effects import CLAIMS

COMPONENTS = {
    "norm": ["pre", "lns"],
    "final": {"setting": "norm.final_norm", "levels": [True, False]},
    "decay": {"setting": "optimizer.weight_decay", "levels": [0.0, 0.1]},
}
UNTIL = "5, then one more until a claim, to 20"
MAIN, INTERACTION = "norm=lns", "norm=lns x final=false"  # of which a true effect may be


@dataclass(frozen=True)
class Cells(Noisy):
    """A valley whose cells with the second norm may have a best rate of their own, or be the only ones that fail."""

    scenario: str = ""

    def mean(self, arm: str, params: Mapping[str, Any]) -> float:
        """The expectation over seeds."""
        twice = self.scenario == "own rates" and arm.startswith(MAIN)
        return super().mean(arm, {"optimizer.lr": params["optimizer.lr"] / (2 if twice else 1)})

    def __call__(self, arm: str, params: Mapping[str, Any], seed: int) -> float:
        level = arm.startswith(MAIN)
        safe = self.scenario == "one level fails" and not level
        value = Noisy.__call__(replace(self, fails=0.0) if safe else self, arm, params, seed)
        usual = self.mean(arm, params) + self.shared * draw_normal(self.entropy, seed)
        return math.inf if self.scenario == "worst fail" and level and value > usual + self.own else value


SCENARIOS: dict[str, dict[str, Any]] = {
    **{name: NOISES[name] for name in ("normal", "t3", "stuck 0.1", "stuck 0.3", "diverging 0.1")},
    "own rates": {},
    "one level fails": NOISES["diverging 0.1"],
    "worst fail": {},
}
"""Name -> how seeds end. own rates: the best learning rate of a level is twice that of the other, where the search has
one as good. one level fails: its cells diverge on a tenth of the seeds, so that claims of failures are true. worst
fail: at one level those runs diverge that would have ended a standard deviation above their mean, a sixth of them, so
that those that train look better."""


@lru_cache
def build_spec(looks: str, seeds: int | None = None) -> Sweep:
    """Return a factorial of three components, each cell of which searches four learning rates. `seeds`: in the place of
    those of `looks`."""
    tree = {
        "name": "simulated",
        "components": COMPONENTS,
        "design": "factorial",
        "confirm": {**LOOKS[looks], **({"seeds": seeds} if seeds else {})},
        **SAMPLERS["grid"],
    }
    return Sweep.from_tree(tree)


def add_a_seed(spec: Sweep, ends: Conclusions) -> Sweep | None:
    """Return the sweep with one more fresh seed: what somebody does who stops when an effect is claimed."""
    seeds = spec.confirm.most_seeds
    if seeds >= 20 or any(effect.kind in CLAIMS for effect in ends.effects.values()):
        return None
    return build_spec(UNTIL, seeds + 1)


def list_floors(spec: Sweep, main: float, interaction: float) -> dict[str, float]:
    """Return the floor of each cell. `main` and `interaction` are in standard deviations of the difference of two cells
    over seeds."""
    unit = OWN * math.sqrt(2)
    assert spec.designed is not None
    floors = {}
    for arm, cell in spec.designed.cells.items():
        level, other = cell["norm"] == "lns", cell["final"] == "false"
        floors[arm] = 2.0 - unit * main * level - unit * interaction * (level and other)
    return floors


def measure(scenario: str, looks: str, sweeps: int, main: float, interaction: float) -> dict[str, float]:
    """Return shares over `sweeps` simulated sweeps."""
    spec, counts = build_spec(looks), defaultdict[str, float](float)
    floors = list_floors(spec, main, interaction)
    rates = SAMPLERS["grid"]["search"]["optimizer.lr"]
    points = {arm: [{"optimizer.lr": rate} for rate in rates] for arm in spec.all_arms}
    then = add_a_seed if looks == UNTIL else lambda spec, ends: None
    for entropy in range(sweeps):
        valley = Cells(floors, own=OWN, entropy=entropy, scenario=scenario, **SCENARIOS[scenario])
        ends = replay_design(spec, valley, points, trivial_loss=TRIVIAL, then=then)
        effects, means = ends.effects, {arm: valley.mean(arm, c.params) for arm, c in ends.compared.items() if c.params}
        counts["claims"] += any(effect.kind in CLAIMS for effect in effects.values())
        counts["differences"] += any("fails" not in e.kind for e in effects.values() if e.kind in CLAIMS)
        counts["main"] += effects[MAIN].kind == "better"
        counts["interaction"] += effects[INTERACTION].kind == "better together"
        counts["unstated"] += sum(effect.kind == "cannot be stated" for effect in effects.values()) / len(effects)
        counts["seeds"] += effects[MAIN].versus.seeds
        for effect in effects.values():
            if interval := effect.versus.interval:
                truth = sum(weight * means[cell] for cell, weight in effect.contrast.weights.items())
                counts["intervals"] += 1
                counts["held"] += interval[0] <= truth <= interval[1]
    shares = {
        key: counts[key] / sweeps for key in ("claims", "differences", "main", "interaction", "unstated", "seeds")
    }
    return {**shares, "held": counts["held"] / counts["intervals"] if counts["intervals"] else math.nan}


def main() -> None:
    """Print the table as Markdown, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=500, help="simulated sweeps of each row")
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), choices=list(SCENARIOS))
    parser.add_argument("--looks", nargs="+", default=list(LOOKS), choices=list(LOOKS))
    parser.add_argument("--main", type=float, default=0.0, help="true main effect of one level, in sd of a difference")
    parser.add_argument("--interaction", type=float, default=0.0, help="true interaction, in sd of a difference")
    options = parser.parse_args()
    begin = time.monotonic()
    header = "outcomes | looks | any claim | any of a difference | main found | interaction found | interval holds"
    print(f"| {header} | unstated | seeds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for scenario in options.scenarios:
        for looks in options.looks:
            row = measure(scenario, looks, options.sweeps, options.main, options.interaction)
            told = [
                f"{100 * row[key]:.1f} %"
                for key in ("claims", "differences", "main", "interaction", "held", "unstated")
            ]
            print(f"| {scenario} | {looks} | {' | '.join(told)} | {row['seeds']:.1f} |", flush=True)
    print(f"\n{options.sweeps} sweeps a row, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
