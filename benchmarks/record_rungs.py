"""Records what rungs would see of whole grids, which benchmarks/rungs.py and tests/sweeps/test_rungs_replay.py replay.

    python benchmarks/record_rungs.py                    # as tests/data/rung_grids.csv: 270 runs, one core
    python benchmarks/record_rungs.py --families vit --seeds 0

Every run is one training of a small model with warm-up, a constant rate and a decay: two families, five placements,
nine learning rates, three seeds. At each of the lengths below the run is copied, the copy decays and is validated, and
the run itself goes on at its rate. A row is one length: the loss of the decayed copy (`decayed`), and that of the run
itself (`trunk`); at the whole length there is only the first. A run that diverged has no losses from there on.
Repeated, the command goes on where it was stopped.

It is a plain loop around the parts of the platform, and not its Trainer: the platform's runs are compared with it.
"""

from __future__ import annotations

import argparse
import copy
import csv
import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ablate import tracking
from ablate.data import Corpus, SequentialBatches, build_loader
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.optim.optimizers import build_optimizer

FILE = Path(__file__).parents[1] / "tests" / "data" / "rung_grids.csv"
COLUMNS = ("family", "arm", "lr", "seed", "updates", "decayed", "trunk")
UPDATES = 400
LENGTHS = (25, 36, 44, 100, 120, 132, UPDATES)
"""Of the copies: 0.33 twice and once, as nine settings have them; 0.09 and 0.3, as 16 settings with `keep: 0.25` have
them; a sixteenth and a quarter, which is what these would have without a shortest rung."""
RATES = tuple(float(f"{5.62e-4 * 100 ** (i / 8):.3g}") for i in range(9))
PLACEMENTS = ("pre", "post", "mix", "deepnorm", "lns")
CHECKED = 10
"""Updates between two looks at whether a run diverged, as `trainer.log_every_n_steps`."""
_SHARED: dict[str, Any] = {
    "optimizer": {"kind": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1},
    "schedule": {"kind": "wsd", "warmup_steps": 12, "decay_fraction": 0.1},
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        **_SHARED,
        "model": {"kind": "llama", "hidden": 32, "layers": 4, "heads": 2, "mlp": 96},
        "data": {"kind": "topics", "seq_len": 64, "val_fraction": 0.01},
        "trainer": {"max_steps": UPDATES, "batch_size": 8, "val_samples": "all"},
    },
    "vit": {
        **_SHARED,
        "model": {"kind": "vit", "hidden": 32, "layers": 4, "heads": 4, "patch_size": 4},
        "data": "digits",
        "trainer": {"max_steps": UPDATES, "batch_size": 64, "val_samples": "all"},
    },
}


def build_experiment(family: str, arm: str, rate: float, seed: int) -> Experiment:
    """Return one run of the grid."""
    return Experiment.from_mapping(FAMILIES[family], {"norm": arm, "optimizer.lr": rate, "seed": seed})


class Training:
    """A run that can be copied: its model, its optimizer and how far it is."""

    def __init__(self, experiment: Experiment, corpus: Corpus) -> None:
        torch.manual_seed(experiment.seed)
        self.experiment, self.corpus, self.updates = experiment, corpus, 0
        self.model: Model = experiment.build_model(corpus.classes, corpus.shape)
        self.optimizer = build_optimizer(experiment.optimizer, self.model)
        self.limit = 0.0
        """The training loss above which it has diverged; 0 before the first loss."""

    def copy(self) -> Training:
        """Return another run at the same state."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model)
        other.optimizer = build_optimizer(self.experiment.optimizer, other.model)
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return other

    def train(self, until: int, length: int) -> bool:
        """Train to the update `until` of a run of `length` updates; return whether it has not diverged."""
        experiment, corpus = self.experiment, self.corpus
        batches = corpus.train.batches(
            experiment.trainer.batch_size, experiment.seed, start_batch=self.updates, rank=0, world_size=1, workers=0
        )
        for inputs, targets in islice(batches, until - self.updates):
            for group in self.optimizer.param_groups:
                group["lr"] = experiment.optimizer.lr * experiment.schedule.factor(self.updates, length)
            loss = experiment.task.compute_loss(self.model, inputs, targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.updates += 1
            if (self.updates == 1 or self.updates % CHECKED == 0) and not self._accept(loss.item()):
                return False
        return True

    def _accept(self, loss: float) -> bool:
        """Return whether a training loss is not that of a run that diverged, by the rule of the platform."""
        if not self.limit:
            even = self.experiment.task.initial_loss(self.corpus.classes)
            self.limit = self.experiment.trainer.diverge_factor * max(even, loss)
        return math.isfinite(loss) and loss <= self.limit

    @torch.no_grad()
    def validate(self) -> float:
        """Return the mean loss over the validation set."""
        self.model.eval()
        val, size = self.corpus.val, self.experiment.trainer.batch_size
        total = count = 0.0
        for inputs, targets in build_loader(val, SequentialBatches(len(val), size, rank=0, world_size=1)):
            batch = float(self.experiment.task.count_targets(inputs, targets))
            total += float(self.experiment.task.validate_batch(self.model, inputs, targets, None)) * batch
            count += batch
        self.model.train()
        return total / count


def record_run(experiment: Experiment, corpus: Corpus) -> Iterator[tuple[int, float, float]]:
    """Yield (length, loss of the decayed copy, loss of the run itself) at each of LENGTHS; nan for what diverged, and
    for the run itself at the whole length."""
    run, schedule = Training(experiment, corpus), experiment.schedule
    run.model.train()
    begins = {length - round(schedule.decay_fraction * length): length for length in LENGTHS}  # type: ignore[attr-defined]
    decayed, trunk = dict.fromkeys(LENGTHS, math.nan), dict.fromkeys(LENGTHS, math.nan)
    for updates in sorted({*begins, *LENGTHS} - {UPDATES}):
        if not run.train(updates, UPDATES):
            break
        if updates in LENGTHS:
            trunk[updates] = run.validate()
        if updates in begins:
            branch = run.copy()
            if branch.train(begins[updates], begins[updates]):
                decayed[begins[updates]] = branch.validate()
    yield from ((length, decayed[length], trunk[length]) for length in LENGTHS)


def list_recorded(file: Path) -> set[tuple[str, ...]]:
    """Return the (family, arm, rate, seed) of the runs that the file has."""
    if not file.exists():
        return set()
    with file.open(newline="", encoding="utf-8") as lines:
        return {tuple(row[:4]) for row in csv.reader(lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--file", type=Path, default=FILE)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    known = list_recorded(arguments.file)
    with arguments.file.open("a", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        if not known:
            writer.writerow(COLUMNS)
        for seed in arguments.seeds:
            for family in arguments.families:
                corpus = build_experiment(family, "pre", RATES[0], seed).data.load(tracking.cache_folder())
                for arm in PLACEMENTS:
                    begin = time.monotonic()
                    for rate in RATES:
                        key = (family, arm, f"{rate:.3g}", str(seed))
                        if key in known:
                            continue
                        rows = list(record_run(build_experiment(family, arm, rate, seed), corpus))
                        writer.writerows([*key, n, *(_format(loss) for loss in losses)] for n, *losses in rows)
                        lines.flush()
                    print(f"seed {seed}, {family}, {arm}: {time.monotonic() - begin:.0f} s", flush=True)


def _format(loss: float) -> str:
    return f"{loss:.4f}" if math.isfinite(loss) else ""


if __name__ == "__main__":
    main()
