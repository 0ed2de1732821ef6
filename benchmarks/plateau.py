"""When `budget.plateau` ends a search: trials until the bound on what is left to gain falls below so many standard
deviations of the objective over seeds.

    python benchmarks/plateau.py                   # 12 searches of 24 trials for each noise, a minute
    python benchmarks/plateau.py --searches 4

Each search is of a learning rate over three decades by TPE; the loss is quadratic in its logarithm, with normal noise.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import warnings

import optuna
from timing import positive

from ablate.sweeps.search.plateau import bound_gain

NOISES, GAINS, TRIALS, LEAST = (0.01, 0.05), (1, 2, 3, 4), 24, 8


def find_ends(noise: float, seed: int) -> dict[int, int | None]:
    """Return gain, in standard deviations -> the trials after which the rule ends a search; None: it does not."""
    chosen = random.Random(seed)
    best = 3e-3 * 10 ** chosen.uniform(-1, 1)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    ends: dict[int, int | None] = dict.fromkeys(GAINS)
    for number in range(1, TRIALS + 1):
        trial = study.ask({"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)})
        study.tell(trial, 2 + 0.4 * math.log10(trial.params["lr"] / best) ** 2 + chosen.gauss(0, noise))
        if number >= LEAST:
            bound = bound_gain(study, study.trials)
            ends = {gain: end or (number if bound <= gain * noise else None) for gain, end in ends.items()}
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=positive, default=12, help="searches for each noise (default: 12)")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    searches = [find_ends(noise, seed) for noise in NOISES for seed in range(given.searches)]
    for gain in GAINS:
        ends = [end for search in searches if (end := search[gain]) is not None]
        when = f", after {min(ends)} to {max(ends)} trials, median {statistics.median(ends):g}" if ends else ""
        print(f"gain of {gain} sd: ends {len(ends)} of {len(searches)} searches of {TRIALS} trials{when}")


if __name__ == "__main__":
    main()
