"""How often a spot check lets the other sizes take over the settings of the smallest: simulated files with known best
rates, searched and checked by the engine of real sweeps.

    python benchmarks/transfer_in_sweeps.py
    python benchmarks/transfer_in_sweeps.py --times 20 --arms 7

In each file the best rate of the first arm is multiplied by a factor with each doubling of the width, and those of the
other arms stay. Losses are parabolas that rise by 0.04 nats for the first doubling of the rate; `confirm.effect` is
0.05. Prints how many files go on without a search at larger sizes, and what the chosen rates cost there at most,
compared with the best, on average over these files: at the next width, and at eight times the first.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

import optuna
import yaml
from simulation.losses import Valley
from simulation.sweeps import simulate

from ablate.cli.arguments import parse_positive
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.transferring import resolve_from

BEST, DOUBLING = 2.0**0.3 * 4e-3, 0.04
FACTORS = (1.0, 0.8, 0.5, 0.35, 0.25)
RATES = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
WIDTHS = {"w32": 32, "w64": 64, "w128": 128, "w256": 256}
CURVATURE = DOUBLING / math.log10(2) ** 2


def write_file(folder: Path, arms: int, at: str) -> Path:
    """Write the sweep file and return its path."""
    tree: dict[str, Any] = {
        "name": "simulated",
        "experiment": {"data": {"kind": "topics", "seq_len": 32}, "trainer": {"max_steps": 10}},
        "arms": {f"arm{i}": {"norm": "pre"} for i in range(arms)},
        "search": {"transfer": {"from": "w32", "at": at}, "optimizer.lr": RATES},
        "sampler": "grid",
        "confirm": {"seeds": 3, "effect": 0.05},
        "sizes": {name: {"model": {"hidden": w, "layers": 1, "heads": 1, "mlp": w}} for name, w in WIDTHS.items()},
    }
    file = folder / f"simulated-{arms}-{at}.yaml"
    file.write_text(yaml.safe_dump(tree))
    return file


def run(specs: list[Sweep], factor: float, own: float, entropy: int) -> Sweep:
    """Return what the last size trains after the search and the spot check."""
    records: dict[str, SweepRecord] = {}
    for spec in specs[:2]:
        doublings = math.log2(spec.base(next(iter(spec.own_arms))).model.stack().hidden / 32)
        resolved = resolve_from(spec, records.__getitem__)
        rates = {arm: BEST * factor ** (doublings * (arm == "arm0")) for arm in specs[0].own_arms}

        def lose(name: str, params: Any, seed: int, spec: Sweep = resolved, rates: dict[str, float] = rates) -> float:
            arm = name.split(" ")[0]
            valley = Valley({arm: 2.0}, rates[arm], CURVATURE, 0.02, own, entropy)
            rate = params.get("optimizer.lr", spec.base(name).optimizer.lr)
            return valley(arm, {"optimizer.lr": rate}, seed)

        records[spec.name] = simulate(resolved, lose, optuna.storages.InMemoryStorage())
    return resolve_from(specs[-1], records.__getitem__)


def cost(spec: Sweep, factor: float, doublings: int) -> float:
    """Return what the rates of a size that took them over cost at most, against the best after so many doublings."""
    best = {arm: BEST * factor ** (doublings * (arm == "arm0")) for arm in spec.own_arms}
    return max(CURVATURE * math.log10(spec.base(arm).optimizer.lr / rate) ** 2 for arm, rate in best.items())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=parse_positive, default=100)
    parser.add_argument("--arms", type=parse_positive, nargs="+", default=[2, 7])
    parser.add_argument("--at", nargs="+", default=["w64", "w256"], help="sizes of the spot check")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01, 0.03])
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print("factor noise arms check   kept  next  eight times")
    with tempfile.TemporaryDirectory() as folder:
        for arms in options.arms:
            for at in options.at:
                specs = load_sweeps(write_file(Path(folder), arms, at))
                for own in options.noise:
                    for factor in FACTORS:
                        last = [run(specs, factor, own, k) for k in range(options.times)]
                        kept = [s for s in last if s.transfer and s.transfer.outcome == "holds"]
                        means = [
                            math.fsum(cost(s, factor, k) for s in kept) / len(kept) if kept else math.nan
                            for k in (1, 3)
                        ]
                        share = len(kept) / options.times
                        print(
                            f"{factor:6} {own:5} {arms:4} {at:5} {share:6.1%} {means[0]:5.3f} {means[1]:5.3f}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
