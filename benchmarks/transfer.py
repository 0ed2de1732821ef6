"""How often the report on best learning rates over sizes errs: simulated arms with a known best rate,
judged like those of real runs.

    python benchmarks/transfer.py
    python benchmarks/transfer.py --times 200 --seeds 3 5 8

Prints a line for each truth, number of seeds and number of arms that share the error: the true cost in nats, how many
of the arms are said to move, to hold and to cost, and how many intervals of the slope miss the true one.
"""

from __future__ import annotations

import argparse

from simulation.transfers import Truth, count_claims

from ablate.cli.arguments import parse_positive

TRUTHS = {
    "stays": Truth(),
    "stays, 0.02 nats": Truth(own=0.02),
    "stays, 0.05 nats": Truth(own=0.05),
    "stays, each seed its own": Truth(wandering=0.5),
    "stays, skewed": Truth(skew=2),
    "stays, skewed, cliff, 0.02 nats": Truth(cliff=1.0, skew=2, own=0.02),
    "stays, skew grows with the width": Truth(sharpening=4),
    "falls by a fifth, 0.02 nats": Truth(slope=-1 / 3, own=0.02),
    "falls by 0.3": Truth(slope=-0.5),
    "halves": Truth(slope=-1),
    "halves, 0.02 nats": Truth(slope=-1, own=0.02),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=parse_positive, default=1000)
    parser.add_argument("--seeds", type=parse_positive, nargs="+", default=[3, 5])
    parser.add_argument("--arms", type=parse_positive, nargs="+", default=[1, 7])
    options = parser.parse_args()
    words = ("rises", "falls", "missed", "holds", "costs", "fails more often")
    print(f"{'truth':32} seeds arms  cost" + "".join(f" {word:>8}" for word in words))
    for name, truth in TRUTHS.items():
        for seeds in options.seeds:
            for arms in options.arms:
                claims = count_claims(truth, seeds, arms, options.times)
                shares = "".join(f" {claims[word] / options.times:8.1%}" for word in words)
                print(f"{name:32} {seeds:5} {arms:4} {truth.cost():5.3f}{shares}", flush=True)


if __name__ == "__main__":
    main()
