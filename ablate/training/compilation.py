"""Whether compiling pays: the time that it saves over a run, or over all trials of a sweep, against its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    import torch

    from ablate.data import Corpus
    from ablate.estimate import flops
    from ablate.experiment.tree import Experiment
else:
    torch = LazyModule("torch")
    flops = LazyModule("ablate.estimate.flops")

# Measured with benchmarks/compiling.py on two cores without a cache: what a process compiles first takes half a minute,
# most of it the headers of torch, and each further kind of model a few seconds.
FIRST_SECONDS, FURTHER_SECONDS = 35, 5
SAVED = 0.09  # the share of a run's time that compiling saves in the least favourable case measured, the demo


@dataclass(frozen=True)
class Compilation:
    """Whether runs are compiled, where their settings leave it open, and why."""

    compiles: bool
    why: str


@dataclass(frozen=True)
class Runs:
    """A number of runs of equal settings, but for seeds and rates."""

    experiment: Experiment
    corpus: Corpus
    count: float = 1

    @property
    def seconds(self) -> float:
        """A rough time of one of them on this machine."""
        work = flops.estimate_work(self.experiment, (self.corpus.classes, self.corpus.shape))
        return work.seconds_here if work else 0.0


def choose_compilation(runs: Iterable[Runs]) -> Compilation:
    """Return whether compiling saves more time over all of `runs` than it takes, on this machine: the same for all of
    them, whatever their placements."""
    runs = list(runs)
    if not has_compiler():
        return Compilation(False, "there is no C++ compiler")
    if unrolled := next((r.experiment.model.title for r in runs if r.experiment.model.unrolls), None):
        return Compilation(False, f"compiling would write out the steps of model {unrolled}")
    seconds = sum(each.count * each.seconds for each in runs)
    kinds = {(describe_shapes(each.experiment), repr(each.experiment.norm)) for each in runs}
    cost = FIRST_SECONDS + FURTHER_SECONDS * len(kinds)
    many = f"all {round(sum(each.count for each in runs))} runs" if sum(each.count for each in runs) > 1 else "the run"
    if seconds * SAVED <= cost:
        short = "are" if many.startswith("all") else "is"
        return Compilation(False, f"{many} {short} too short to save the {cost} s of compiling")
    return Compilation(True, f"saves {SAVED:.0%} or more of the time of {many}, and takes {cost} s")


def has_compiler() -> bool:
    """Return whether this machine can compile: it has a GPU, whose compiler torch brings, or a C++ compiler."""
    return torch.cuda.is_available() or any(shutil.which(name) for name in ("c++", "g++", "clang++"))


def describe_shapes(experiment: Experiment) -> str:
    """Return the settings that the shapes of a model and of its batches follow from; equal ones share programs where
    their placements do."""
    trainer = experiment.trainer.model_dump(
        mode="json", include={"batch_size", "accumulate", "precision", "activation_checkpointing", "tensor_parallel"}
    )
    parts = experiment.model_dump(mode="json", include={"model", "task", "data", "lora"})
    return json.dumps(parts | {"trainer": trainer}, sort_keys=True)
