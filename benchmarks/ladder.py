"""How often the intervals of a ladder hold the truth, and how often it claims what is not so: simulated, no training.

    python benchmarks/ladder.py                    # 400 ladders for each row of coverage, 1,000 for each of claims
    python benchmarks/ladder.py --ladders 100

Two arms with floors, half a nat apart at 1 M parameters and 0.005 at 1 G; six equal arms for claims.
"""

from __future__ import annotations

import argparse

import numpy as np
from simulation.ladders import SIZES, Truth, build_converging, build_curve, count_claims, measure_coverage
from timing import positive

TARGET = 1e9
NOISES = {
    "small": {"shared": 0.005, "own": 0.003},
    "large": {"shared": 0.02, "own": 0.01},
    "twice as large at each size": {"shared": 0.005, "own": 0.004, "growth": 2.0},
}
MORE = (1e6, 2e6, 4e6, 8e6, 1.6e7, 6.4e7)


def extrapolate_line(truth: Truth) -> float:
    """Return what a straight line through the true differences says at the target."""
    x = np.log10(truth.sizes)
    slope, at_zero = np.polyfit(x, [truth.difference(n) for n in truth.sizes], 1)
    return float(at_zero + slope * np.log10(TARGET))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladders", type=positive, default=400, help="for each row of coverage (default: 400)")
    options = parser.parse_args()
    truth = build_converging(TARGET)
    print(f"difference at 1 G: {truth.difference(TARGET):+.3f}; a straight line says {extrapolate_line(truth):+.3f}")
    print(f"\nIntervals that hold the truth, of {options.ladders} ladders")
    for sizes in (SIZES[:3], SIZES, MORE):
        for seeds in (3, 5):
            for name, noise in NOISES.items():
                truth = build_converging(TARGET, sizes=sizes, **noise)
                held = measure_coverage(truth, seeds, TARGET, options.ladders)
                kinds = [kind for kind in held if f"{kind} of" in held]
                text = ", ".join(f"{kind} {held[kind]}/{held[f'{kind} of']}" for kind in kinds)
                print(f"{len(sizes)} sizes, {seeds} seeds, noise {name}: {text}", flush=True)
    ladders = 5 * options.ladders // 2
    print(f"\nLadders with a false claim, of {ladders}: five equal arms and the baseline at four sizes")
    for noise_name, growth in (("even", 1.0), ("twice as large at each size", 2.0)):
        for share in (0.0, 0.2, 0.5):
            equal = {f"arm{i}": build_curve(2, 1, 0.35) for i in range(6)}
            truth = Truth(equal, growth=growth, failing=lambda arm, size, share=share: share)  # type: ignore[misc]
            for looks in ((3,), (5,), (3, 4, 5, 6, 7, 8)):
                claims = count_claims(truth, looks, ladders)
                text = ", ".join(f"{kind} {number}" for kind, number in sorted(claims.items())) or "none"
                told = f"looks at {', '.join(map(str, looks))} seeds"
                print(f"noise {noise_name}, {100 * share:.0f} % fail, {told}: {text}", flush=True)


if __name__ == "__main__":
    main()
