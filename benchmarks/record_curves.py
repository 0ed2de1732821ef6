"""Records the validation losses of real runs over learning rates, which benchmarks/searchers.py searches many times.

    python benchmarks/record_curves.py                     # as benchmarks/data/curves.csv, 507 runs in 45 minutes
    python benchmarks/record_curves.py --seeds 0 --tasks vision

Every run is a trial of an ordinary sweep with `sampler: grid`: five placements (on language also Mix-LN at three more
shares of its layers) at 13 learning rates from 1e-4 to 1e-1, for each seed. Repeated, the command continues; what is
recorded is complete seed by seed. One row of the file is one validation, the last of a run with how it ended: trained,
stuck (no better than the frequencies of tokens or classes) or diverged, at the update where it did and without a loss.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ablate
from ablate.sweeps.records import SweepRecord

FILE = Path(__file__).with_name("data") / "curves.csv"
COLUMNS = ("task", "arm", "lr", "seed", "update", "loss", "ending")
RATES = {"low": 1e-4, "high": 1e-1, "log": True, "num": 13}
SCHEDULE = {"kind": "cosine", "warmup_fraction": 0.1, "final_fraction": 0.1}
TASKS: dict[str, dict[str, Any]] = {
    "language": {
        "model": {"kind": "llama", "hidden": 48, "layers": 4, "heads": 2, "mlp": 128},
        "data": {"kind": "topics", "seq_len": 64, "val_fraction": 0.01},
        "optimizer": {"kind": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1},
        "schedule": SCHEDULE,
        "trainer": {"max_steps": 200, "batch_size": 8, "val_check_interval": 25},
    },
    "vision": {
        "model": {"kind": "vit", "hidden": 32, "layers": 4, "heads": 4},
        "data": "digits",
        "optimizer": {"kind": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.05},
        "schedule": SCHEDULE,
        "trainer": {"max_steps": 200, "batch_size": 32, "val_check_interval": 25},
    },
}
PLACEMENTS: dict[str, dict[str, Any]] = {name: {"norm": name} for name in ("pre", "post", "mix", "deepnorm", "lns")}
SHARES: dict[str, dict[str, Any]] = {
    f"mix {share:g}": {"norm": "mix", "norm.alpha": share} for share in (0.5, 0.75, 1.0)
}  # of four layers; `mix` is 0.25


def build_sweep(task: str, seed: int, arms: str) -> ablate.Sweep:
    """Return the sweep that records one seed of a task: of its placements, or of the shares of Mix-LN."""
    tree = {
        "name": f"curves-{task}-{arms}-{seed}",
        "experiment": {**TASKS[task], "seed": seed},
        "arms": {"placements": PLACEMENTS, "shares": SHARES}[arms],
        "search": {"optimizer.lr": RATES},
        "sampler": "grid",
        "objective": {"metric": "val/loss", "direction": "minimize"},
        "checkpoints": "none",
    }
    return ablate.Sweep.from_tree(tree)


def list_rows(record: SweepRecord, task: str, seed: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the file of one sweep."""
    for arm, trials in ((arm, record.search(arm)) for arm in record.arms):
        for trial in sorted(trials, key=lambda trial: trial.params["optimizer.lr"]):
            outcome = record.runs.find_outcome(trial)
            assert outcome is not None, f"{arm} #{trial.number} has not ended: {trial.reason}"
            begin = (task, arm, f"{trial.params['optimizer.lr']:.6g}", seed)
            last = max(trial.curve, default=0)
            yield from (
                (*begin, update, f"{loss:.5f}", outcome.ending if update == last == trial.step else "")
                for update, loss in trial.curve.items()
            )
            if last != trial.step:
                yield *begin, trial.step, "", outcome.ending


def main() -> None:
    """Run what is missing, and write the file after each sweep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    plan = [(task, seed, "placements") for seed in options.seeds for task in options.tasks]
    plan += [("language", seed, "shares") for seed in options.seeds if "language" in options.tasks]
    rows: list[tuple[Any, ...]] = []
    for task, seed, arms in plan:
        record = ablate.sweep(build_sweep(task, seed, arms))
        rows += list_rows(record, task, seed)
        options.file.parent.mkdir(exist_ok=True)
        with options.file.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(rows)
        print(f"{options.file}: {len(rows):,} rows, up to {task}, {arms}, seed {seed}", flush=True)


if __name__ == "__main__":
    main()
