"""How often equal arms are claimed to be faster, what the intervals of speed hold, and what is found: simulated.

    python benchmarks/speed.py                     # 1,000 sweeps a row, some 20 minutes
    python benchmarks/speed.py --sweeps 100 --only false

Whole sweeps without training: looks, stages, verdict and speed are the engine's. Beside it, what would be claimed by
the first time at which each curve touches the final loss of the baseline, with Student's interval of the mean share
over the seeds.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from typing import Any

from simulation.curves import STEPS, Curves, build_spec, find_truth, run_stages
from timing import positive

from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.speed import compare_speeds, compare_times
from ablate.verdict.comparison import Compared
from ablate.verdict.intervals import bound_mean

LOOKS: dict[str, dict[str, Any]] = {
    "5": {"seeds": 5},
    "10": {"seeds": 10},
    "3 to 12": {"seeds": {"min": 3, "max": 12}, "effect": 1e-6},
}
NOISES: dict[str, dict[str, Any]] = {
    "even": {},
    "each validation": {"each": 0.01},
    "each validation, flat": {"each": 0.01, "shape": "flat at the end"},
    "heavy tails": {"tails": True},
    "a fifth fails": {"fails": 0.2},
}
COSTS: dict[str, dict[str, Any]] = {
    "end": {},
    "flops": {"costs": (2.0, 1.5, 0.7), "at_cost": True},
    "seconds": {"costs": (2.0, 1.5, 0.7), "at_cost": True, "jitter": 0.02},
}
TARGET = 2.4


def claims_by_first_touch(record: SweepRecord, arm: str, compared: Compared) -> bool:
    """Return whether the mean share of the updates until a curve first touches the baseline's last value is below 1."""
    own, other = ({run.seed: run for run in record.fresh(name)} for name in (arm, record.spec.baselines[arm]))
    shares = []
    for seed, run in own.items():
        base = other.get(seed)
        if base and base.value is not None:
            met = [place for place, value in run.curve.items() if value <= base.value]
            if not met:
                return False  # of seeds that never touch it there is no mean
            shares.append(min(met) / STEPS)
    level = compared.versus.level if compared.versus else 0.0
    ends = bound_mean(shares, level).interval if len(shares) > 2 else None
    return ends is not None and ends[1] < 1


def measure(noise: str, looks: str, comparisons: int, at: str, sweeps: int, speed: float = 1.0) -> Counter[str]:
    """Return counts over `sweeps` sweeps, in which the first arm is faster by the factor `speed`."""
    counts = Counter[str]()
    spec = build_spec(comparisons, LOOKS[looks], target=TARGET, compare={"at": at})
    plain = build_spec(comparisons, LOOKS[looks], compare={"at": at})
    more = {**NOISES[noise], **COSTS[at]}
    speeds = (speed, *[1.0] * (comparisons - 1))
    costs = more.pop("costs", (1.0,) * 3)[:comparisons]
    for entropy in range(sweeps):
        curves = Curves(speeds=speeds, costs=costs, entropy=entropy, **more)
        record = run_stages(plain, curves)
        found, timed = compare_speeds(record), compare_times(run_stages(spec, curves))
        compared = compare_record(record)
        false = [arm for arm in found if arm != "arm1" or speed == 1]
        counts["sweeps"] += 1
        # arms that are equal at equal FLOPs, and at equal seconds, may well need fewer tokens
        axes = {"end": {"tokens", "flops"}, "flops": {"flops"}, "seconds": {"flops", "seconds"}}[at]
        counts["false"] += any(axes.intersection(found[arm].claimed) for arm in false)
        counts["false, target"] += any(axes.intersection(timed[arm].claimed) for arm in false if arm in timed)
        if at == "end":
            counts["first touch"] += any(claims_by_first_touch(record, arm, compared[arm]) for arm in false)
        for name, known in (("found", found), ("found, target", timed)):
            counts[name] += bool("arm1" in known and known["arm1"].claimed)
        counts["better"] += compared["arm1"].kind == "better"
        counts["seeds"] += found["arm1"].seeds if "arm1" in found else 0
        if at == "end":
            goals = {"": (found, curves.find_mean("arm0", STEPS)), ", target": (timed, TARGET)}
            for name, (known, goal) in goals.items():
                share = known["arm1"].shares.get("tokens") if "arm1" in known else None
                truth = find_truth(curves, "arm1", goal) / find_truth(curves, "arm0", goal)
                if share and math.isfinite(truth) and known["arm1"].updates:
                    counts[f"intervals{name}"] += 1
                    high = math.inf if share.high is None else share.high
                    counts[f"held{name}"] += share.low <= truth * (1 + 1e-9) and truth <= high * (1 + 1e-9)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=positive, default=1000, help="of each row")
    parser.add_argument("--only", choices=["false", "power"], help="one of the two tables")
    parser.add_argument("--at", nargs="+", default=list(COSTS), choices=list(COSTS), help="of the first table")
    options = parser.parse_args()
    if options.only != "power":
        print("| noise | compared at | looks | comparisons | faster | to the target | by first touch |")
        print("|---|---|---|---|---|---|---|")
        cells = [(noise, "end") for noise in NOISES] + [("even", "flops"), ("each validation", "seconds")]
        for noise, at in (cell for cell in cells if cell[1] in options.at):
            for looks in LOOKS:
                for comparisons in (1, 3):
                    got = measure(noise, looks, comparisons, at, options.sweeps)
                    keys = ("false", "false, target", *(["first touch"] if at == "end" else []))
                    told = [f"{got[key] / options.sweeps:.1%}" for key in keys] + ["-"] * (3 - len(keys))
                    print(f"| {noise} | {at} | {looks} | {comparisons} | {' | '.join(told)} |", flush=True)
    if options.only != "false":
        print("\n| noise | speed | looks | better | faster | to the target | holds the truth | target's | seeds |")
        print("|---|---|---|---|---|---|---|---|---|")
        for noise in ("even", "each validation", "a fifth fails"):
            for speed in (1.1, 1.3):
                for looks in LOOKS:
                    got = measure(noise, looks, 1, "end", options.sweeps, speed)
                    told = [f"{got[key] / options.sweeps:.0%}" for key in ("better", "found", "found, target")]
                    for name in ("", ", target"):
                        of = got[f"intervals{name}"]
                        told.append(f"{got[f'held{name}'] / of:.1%}" if of else "-")
                    seeds = got["seeds"] / options.sweeps
                    print(f"| {noise} | {speed} | {looks} | {' | '.join(told)} | {seeds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
