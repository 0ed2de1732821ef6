"""Whether compiling pays: the time that it saves over a run, or over all trials of a sweep, against its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.config.lazy import LazyModule
from ablate.distributed import ranks

if TYPE_CHECKING:
    import torch

    from ablate.data import Corpus
    from ablate.experiment.tree import Experiment
else:
    torch = LazyModule("torch")

# Measured with benchmarks/compiling.py on two cores without a cache: what a process compiles first takes half a minute,
# most of it the headers of torch, and each further kind of model a few seconds.
FIRST_SECONDS, FURTHER_SECONDS = 35, 5
SAVED = 0.09  # the share of a run's time that compiling saves in the least favourable case measured, the demo
CPU_FLOPS, GPU_FLOPS = 4e10, 5e13  # of one core and of one device, at what small models reach


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


def choose_compilation(runs: Iterable[Runs]) -> Compilation:
    """Return whether compiling saves more time over all of `runs` than it takes, on this machine: the same for all of
    them, whatever their placements."""
    runs = list(runs)
    if not has_compiler():
        return Compilation(False, "there is no C++ compiler")
    if unrolled := next((r.experiment.model.title for r in runs if r.experiment.model.unrolls), None):
        return Compilation(False, f"compiling would write out the steps of model {unrolled}")
    seconds = sum(each.count * estimate_seconds(each.experiment, each.corpus) for each in runs)
    kinds = {(describe_shapes(each.experiment), repr(each.experiment.norm)) for each in runs}
    cost = FIRST_SECONDS + FURTHER_SECONDS * len(kinds)
    saved = round(seconds * SAVED)
    many = f"all {round(sum(each.count for each in runs))} runs" if sum(each.count for each in runs) > 1 else "the run"
    if saved <= cost:
        short = "are" if many.startswith("all") else "is"
        return Compilation(False, f"{many} {short} too short to save the {cost} s of compiling")
    return Compilation(True, f"saves an estimated {saved} s or more over {many}, and takes {cost} s")


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


def estimate_seconds(experiment: Experiment, corpus: Corpus) -> float:
    """Return a rough time of the run: 6 FLOPs for each weight (the embedding left out) and each token, patch or
    position, and the attention, if there is one."""
    model = experiment.model
    weights = model.layer_parameters() + (model.vocabulary(corpus.classes) * model.hidden if model.per_token else 0)
    tokens = model.sequence_length(corpus.shape)
    attention = 12 * model.layers * model.hidden * tokens if model.heads else 0
    flops = (6 * weights + attention) * tokens * experiment.trainer.batch_size * experiment.trainer.max_steps
    one = GPU_FLOPS if torch.cuda.is_available() else CPU_FLOPS * torch.get_num_threads()
    return flops / (one * ranks.world_size())
