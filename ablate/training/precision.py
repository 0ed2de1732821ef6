"""The fast mode: bfloat16 autocast and torch.compile, by rules.

`auto` depends on the size of the model, the number of updates and the kind of device, and not on the placement, so that
all arms of a comparison compute alike. What was chosen, and why, are tags of the run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.config.lazy import torch

if TYPE_CHECKING:
    from ablate.experiment.tree import Experiment

# Measured with benchmarks/step.py: bfloat16 is 1.5 times as fast as float32 where the CPU has matrix tiles for it
# (AMX), slower where it does not, and no faster below this width, where the conversions cost what the products save.
BF16_WIDTH = 256
COMPILED_FROM = 2_000
"""Updates of a run from which `compile: auto` compiles on a GPU. A choice, not a measurement, as no GPU has run this
yet: if compiling took 30 s and saved a fifth of each update, it would pay from here on where one takes 75 ms. On a CPU
only `compile: true` compiles."""


@dataclass(frozen=True)
class Speed:
    """The arithmetic of a run: Lightning's `precision`, whether model and loss are compiled, and why."""

    precision: str
    compile: bool
    why: str

    def list_facts(self) -> dict[str, str]:
        """Return the tags of a run."""
        return {
            "ablate.precision": self.precision,
            "ablate.compile": str(self.compile).lower(),
            "ablate.speed": self.why,
        }


def choose_speed(experiment: Experiment) -> Speed:
    """Return the precision and the compilation of this run on this machine, with `auto` resolved."""
    config = experiment.trainer
    precision, why_precision = str(config.precision), "as set"
    if config.precision == "auto":
        precision, why_precision = _choose_precision(experiment.model.hidden)
    compiled: bool
    if config.compile == "auto":
        compiled, why_compiled = _choose_compilation(experiment)
    else:
        compiled, why_compiled = config.compile, "as set"
    words = f"{precision} ({why_precision}), {'compiled' if compiled else 'eager'} ({why_compiled})"
    if compiled:  # in the user's cache, from which other trials and later sweeps load the programs
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ablate" / "inductor"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
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


def _choose_compilation(experiment: Experiment) -> tuple[bool, str]:
    if not torch.cuda.is_available():
        return False, "there is no GPU"
    if experiment.model.unrolls:
        return False, f"compiling would write out the steps of model {experiment.model.title}"
    updates = experiment.trainer.max_steps
    return updates >= COMPILED_FROM, f"{updates:,} updates on a GPU; it compiles from {COMPILED_FROM:,} on"


def has_gpu_bfloat16() -> bool:
    """Return whether there is a GPU that multiplies bfloat16 matrices; older ones (T4, V100) emulate it slowly."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def has_tiles() -> bool:
    """Return whether the CPU multiplies bfloat16 matrices in tiles (AMX)."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(supported and supported())
