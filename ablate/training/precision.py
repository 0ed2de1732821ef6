"""The fast mode: bfloat16 autocast and torch.compile, chosen if they save time.

`auto` depends on the size of the model, the number of updates and the machine, and not on the placement, so that all
arms of a comparison use the same precision. The choice and its reason are tags of the run.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ablate.distributed import ranks

if TYPE_CHECKING:
    from ablate.data import Corpus
    from ablate.experiment.tree import Experiment
    from ablate.parallel.sharing import Compiled

# Measured with benchmarks/step.py: bfloat16 is 1.5 times as fast as float32 where the CPU has matrix tiles for it
# (AMX), slower where it has not, and no faster below this width, where the conversions cost what the products save.
BF16_WIDTH = 256
COMPILE_SECONDS = 40  # a first compilation on two cores
SAVED = 0.15  # the least share of a run's time that compiling saves
CPU_FLOPS, GPU_FLOPS = 4e10, 5e13  # of one core and of one device, at what small models reach


@dataclass(frozen=True)
class Speed:
    """The arithmetic of a run: Lightning's `precision`, whether model and loss are compiled, and with CUDA graphs, and
    why."""

    precision: str
    compile: Compiled
    why: str


def choose_speed(experiment: Experiment, corpus: Corpus) -> Speed:
    """Return the precision and the compilation of this run on this machine, with `auto` resolved."""
    config = experiment.trainer
    precision, why_precision = str(config.precision), "as set"
    if config.precision == "auto":
        precision, why_precision = _choose_precision(experiment.model.hidden)
    compiled: Compiled
    if config.compile == "auto":
        compiled, why_compiled = _choose_compile(experiment, corpus)
    else:
        compiled, why_compiled = config.compile, "as set"
    if compiled == "reduce-overhead" and not torch.cuda.is_available():
        compiled, why_compiled = True, "as set, without CUDA graphs: there is no GPU"
    how = "CUDA graphs" if compiled == "reduce-overhead" else "compiled" if compiled else "eager"
    words = f"{precision} ({why_precision}), {how} ({why_compiled})"
    if compiled:
        _share_compilations()
    return Speed(precision, compiled, words)


def _choose_precision(width: int) -> tuple[str, str]:
    if torch.cuda.is_available():
        if has_gpu_bfloat16():
            return "bf16-mixed", "the GPU has it"
        return "32-true", "the GPU has no bfloat16"
    if not has_tiles():
        return "32-true", "the CPU has no AMX tiles for bfloat16"
    if width < BF16_WIDTH:
        return "32-true", f"bfloat16 is faster only from a width of {BF16_WIDTH}"
    return "bf16-mixed", "the CPU has AMX tiles"


def has_gpu_bfloat16() -> bool:
    """Return whether there is a GPU that multiplies bfloat16 matrices; older ones (T4, V100) emulate it slowly."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def has_tiles() -> bool:
    """Return whether the CPU multiplies bfloat16 matrices in tiles (AMX)."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(supported and supported())


def _choose_compile(experiment: Experiment, corpus: Corpus) -> tuple[bool, str]:
    if not torch.cuda.is_available() and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return False, "there is no C++ compiler"
    if experiment.model.unrolls:
        return False, f"compiling would write out the steps of model {experiment.model.title}"
    seconds = estimate_seconds(experiment, corpus)
    saved = round(seconds * SAVED)
    if saved <= COMPILE_SECONDS:
        return False, "the run is too short to save the time of compiling"
    return True, f"saves an estimated {saved} s or more"


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


def _share_compilations() -> None:
    """Keep compiled programs in the user's cache, from which other trials and later sweeps load them."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ablate" / "inductor"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
