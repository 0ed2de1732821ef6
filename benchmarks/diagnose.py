"""What measuring the layers in training (`trainer.diagnose.what=all`) takes of the time of the steps.

    python benchmarks/diagnose.py
    python benchmarks/diagnose.py --only demo --runs 5 --threads 1

Each case trains as a trial does: through `ablate.train`, in Lightning, with metrics logged to MLflow, at the default
interval. All that the callback does is timed, in the same run as the steps; printed are its seconds over those of the
steps without it (validation left out), the median of the runs and their range, and beside it what making the figure at
the end takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any

import torch
from timing import between, positive

from ablate import Experiment
from ablate.diagnostics import callback
from ablate.training.callbacks import Curves
from ablate.training.train import train

CASES: dict[str, dict[str, Any]] = {
    "demo": {
        "model": {"hidden": 64, "layers": 6, "heads": 2, "mlp": 172}, "trainer.max_steps": 200, "trainer.batch_size": 8,
        "trainer.val_check_interval": 40, "data.val_fraction": 0.03,
    },
    "depth": {
        "model": {"hidden": 64, "layers": 12, "heads": 2, "mlp": 172}, "trainer.max_steps": 200,
        "trainer.batch_size": 8, "data.val_fraction": 0.01,
    },
    "wide": {
        "model": {"hidden": 256, "layers": 6, "heads": 4, "mlp": 688}, "trainer.max_steps": 60,
        "trainer.batch_size": 16, "data.val_fraction": 0.01,
    },
    "vit": {"model": "vit-digits", "trainer.max_steps": 300, "trainer.batch_size": 64},
}  # fmt: skip


class Timed(callback.LayerDiagnostics):
    """The callback, which notes how long it takes."""

    seconds = 0.0
    figures = 0.0
    steps = 0.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for name in ("on_train_batch_start", "on_train_batch_end", "on_before_optimizer_step", "state_dict"):
            setattr(self, name, self._timed(getattr(self, name)))

    @staticmethod
    def _timed(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                Timed.seconds += time.perf_counter() - begin

        return call

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        Timed.steps = next(c.training_seconds for c in trainer.callbacks if isinstance(c, Curves))

    def publish(self, *arguments: Any) -> None:
        begin = time.perf_counter()
        super().publish(*arguments)
        Timed.figures = time.perf_counter() - begin


def measure(settings: dict[str, Any]) -> tuple[float, float]:
    """(the share of one run, seconds for its figure)."""
    Timed.seconds = 0.0
    train(Experiment.from_mapping(settings, {"trainer.diagnose.what": "all", "trainer.compile": False}))
    return Timed.seconds / (Timed.steps - Timed.seconds), Timed.figures


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    top.add_argument("--runs", type=positive, default=3, help="of each case, after one that is not counted")
    top.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    given = top.parse_args()
    torch.set_num_threads(given.threads)
    callback.LayerDiagnostics = Timed  # type: ignore[misc, assignment]
    print(f"threads {given.threads}; {given.runs} runs; all measurements at the default interval")
    print(f"{'case':10}{'% of the steps':>16}  {'range':18}{'figure, s':>10}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABLATE_STORE"] = folder
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        for case in given.only:
            measure({**CASES[case], "trainer.max_steps": 20})
            shares, figures = zip(*(measure(CASES[case]) for _ in range(given.runs)), strict=True)
            percent = [100 * share for share in shares]
            spread = between((min(percent), max(percent)))
            print(f"{case:10}{statistics.median(percent):16.2f}  {spread:18}{statistics.median(figures):10.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
