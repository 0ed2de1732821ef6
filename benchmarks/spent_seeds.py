"""What is claimed of the one of seven equal arms that stood out most, compared with the baseline again, alone.

    python benchmarks/spent_seeds.py --sweeps 2000          # each arm as it stands, in minutes
    python benchmarks/spent_seeds.py --sweeps 600 --search  # each tuned first

Whole sweeps through the engine's real stages, without training (`simulation.sweeps.simulate`). All arms have the same
loss, so that every claim is false. The arm that stood out most has the largest difference in units of its interval. It
is compared again on the same seeds, as a store would do that forgets which seeds it has spent (a second store stands
for it), then in the same store under another name, and as the next generation of the same sweep (`--fresh`).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

import optuna
from simulation.losses import Valley
from simulation.sweeps import simulate

from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep

CLAIMS = ("better", "worse", "mixed")
ARMS = {"pre": {"norm": "pre"}} | {f"mix{i}": {"norm": {"kind": "mix", "first_layers": i}} for i in range(1, 8)}


def build_spec(name: str, arms: tuple[str, ...], seeds: int, is_tuned: bool) -> Sweep:
    """Return a sweep of some of the arms, the first of which is the baseline."""
    rates = [1e-3, 3e-3, 9e-3] if is_tuned else [3e-3]
    return Sweep.from_tree(
        {
            "name": name,
            "experiment": {"model.layers": 12},
            "arms": {arm: ARMS[arm] for arm in arms},
            "search": {"optimizer.lr": rates},
            "sampler": "grid",
            "confirm": {"seeds": seeds, "at": "best" if is_tuned else "grid"},
        }
    )


def has_claim(record: SweepRecord) -> bool:
    """Return whether anything is claimed of an arm."""
    return any(one.kind in CLAIMS for one in compare_record(record).values())


def find_outstanding(record: SweepRecord) -> str:
    """Return the arm whose difference to the baseline is the largest in units of its interval."""

    def stands_out(name: str) -> float:
        found = compare_record(record)[name].difference
        return abs(found.mean) / found.half_width if found and found.half_width else 0.0

    name = max(record.arms[1:], key=stands_out)
    return record.spec.find_arm(name)


def main() -> None:
    """Print the shares of false claims as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5, help="fresh seeds of each sweep")
    parser.add_argument("--search", action="store_true", help="tune each arm before its test")
    options = parser.parse_args()
    more = options.seeds, options.search
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    begin, claims = time.monotonic(), Counter[str]()
    for entropy in range(options.sweeps):
        valley = Valley(dict.fromkeys(ARMS, 2.0), entropy=entropy)
        storage, forgetful = optuna.storages.InMemoryStorage(), optuna.storages.InMemoryStorage()
        first = simulate(build_spec("seven", tuple(ARMS), *more), valley, storage)
        alone = build_spec("alone", ("pre", find_outstanding(first)), *more)
        claims["seven arms, 7 comparisons"] += has_claim(first)
        claims["the one alone, on the same seeds"] += has_claim(simulate(alone, valley, forgetful))
        claims["the one alone, under another name"] += has_claim(simulate(alone, valley, storage))
        again = alone.model_copy(update={"name": "seven"})
        claims["the one alone, with --fresh"] += has_claim(simulate(again, valley, storage, fresh=True))
    print("| sweep | with a false claim |")
    print("|---|---|")
    for what, count in claims.items():
        print(f"| {what} | {100 * count / options.sweeps:.1f} % |")
    print(f"\n{options.sweeps} sweeps a row, {options.seeds} seeds, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
