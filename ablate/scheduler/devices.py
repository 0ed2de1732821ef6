"""The cores and GPUs of this machine, shared out among the workers of a sweep; as many share a GPU as fit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Literal, NamedTuple

from ablate.config.errors import ConfigError, Problem
from ablate.config.formatting import count_noun
from ablate.config.lazy import postpone_imports
from ablate.distributed import ranks
from ablate.distributed.ranks import count_cores
from ablate.estimate.gpus import GIB
from ablate.experiment.tree import Experiment, require_own
from ablate.sweeps.spec.sweep import Sweep

if TYPE_CHECKING:
    from ablate.estimate.memory import Memory

with postpone_imports():
    from ablate.estimate import inputs as model_inputs
    from ablate.estimate import memory as memory_plan

SHARING = "ABLATE_GPU_SHARING"  # in the environment: number of workers of this machine that have the same GPU
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")


def share_cores(workers: int) -> int:
    """Return the threads of one of `workers` parallel processes: OMP_NUM_THREADS, else its share of the cores."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() and int(asked) else max(1, count_cores() // workers)


class Devices(NamedTuple):
    """The GPUs of a worker."""

    visible: str | None
    """Its CUDA_VISIBLE_DEVICES; None without GPUs."""
    sharing: int
    """Number of workers that share them."""

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables by which a worker knows them."""
        return {"CUDA_VISIBLE_DEVICES": self.visible, SHARING: str(self.sharing)} if self.visible else {}


def pick_devices(slot: int, workers: int) -> Devices:
    """Return the GPUs of the worker `slot` of `workers`: its share of them, or a shared one if there are fewer GPUs
    than workers. They are counted by the driver's library, without CUDA, which this process does not need."""
    there, jobs = _count_gpus(), read_sharing()
    known = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = known.split(",") if known else [str(i) for i in range(there)]
    if not there:
        return Devices(None, 1)
    each = len(visible) // workers
    if each:
        return Devices(",".join(visible[slot * each : (slot + 1) * each]), jobs)
    gpu = slot % len(visible)
    return Devices(visible[gpu], jobs * len(range(gpu, workers, len(visible))))


_DRIVERS = ("/proc/driver/nvidia", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, and of either in WSL


def _count_gpus() -> int:
    """Return the number of GPUs; without a driver there are none, and torch, which takes seconds, is not asked."""
    if "torch" not in sys.modules and sys.platform == "linux" and not any(map(os.path.exists, _DRIVERS)):
        return 0
    import torch

    return torch.cuda.device_count()


def read_sharing() -> int:
    """Return the number of workers that share the GPU of this process."""
    return int(os.environ.get(SHARING, 1))


def cap_memory(sharing: int) -> None:
    """Give this process its part of the memory of a GPU that so many share, less what CUDA's context takes: one that
    wants more is out of memory alone, and takes none from the others."""
    import torch

    if sharing == 1 or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(0).total_memory
    part = total / sharing
    torch.cuda.set_per_process_memory_fraction(max(part - memory_plan.RESERVE, part / 2) / total)


OPTION = "--workers-per-gpu"
_FREE = "import torch; print(*(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())))"
_SAME_MEMORY = re.compile(r"optimizer\.(lr|aux_lr|weight_decay|eps|betas|groups)\b|schedule\.|init|seed")
"""Paths that do not change the memory that a trial needs. Other fields of an optimizer may: SGD keeps nothing without
momentum."""


def count_workers(spec: Sweep, each: int | Literal["auto"]) -> int:
    """Return the total number of workers with `each` on every GPU of this machine; "auto": as many as fit the memory
    and the cores. Raises ConfigError if there is no GPU, or if fewer fit, with their number.
    """
    free = read_free_memory()
    if not free:
        raise _make_error("torch finds no GPU on this machine; use --workers N", each)
    if others := {spec.base(arm).procedure for arm in spec.all_arms} - {"training"}:
        raise _make_error(f"the memory of runs of kind {others.pop()} is not planned; use --workers N", each)
    if ranks.world_size() > 1:
        raise _make_error("a group of ranks trains one trial at a time; omit it", each)
    arm, memory = find_largest(spec)
    most = memory.sharing(min(free))
    needs = f"{memory.needs / GIB:.1f} GiB, by the plan for arm {arm}, and {min(free) / GIB:.1f} GiB are free"
    if not most:
        raise _make_error(f"not even one worker fits: it needs {needs}. ablate plan shows settings that fit", each)
    if each == "auto":
        return len(free) * max(1, min(most, count_cores() // len(free)))
    if each > most:
        raise _make_error(
            f"{count_noun(most, 'worker')} at most: each needs {needs} on a GPU. Use {most}, or auto", each
        )
    return len(free) * each


def find_largest(spec: Sweep) -> tuple[str, Memory]:
    """Return the arm whose trials need most memory, and the memory of one trial at the searched values that need
    most."""
    largest = {arm: _find_most(spec, arm) for arm in spec.all_arms}
    arm = max(largest, key=lambda arm: largest[arm].peak)
    return arm, largest[arm]


def _find_most(spec: Sweep, arm: str) -> Memory:
    corners = spec.corners(arm)
    point = {path: values[0] for path, values in corners.items()}
    most = estimate_memory(require_own(spec.at(arm, point)))
    for path, values in corners.items():
        for value in [] if _SAME_MEMORY.match(path) else values[1:]:
            memory = estimate_memory(require_own(spec.at(arm, {**point, path: value})))
            if memory.peak > most.peak:
                most, point = memory, {**point, path: value}
    return most


def estimate_memory(experiment: Experiment) -> Memory:
    """Return the memory that one trial needs on one GPU."""
    found = model_inputs.find_inputs(experiment)
    meter = memory_plan.Meter(experiment, found.classes, found.shape)
    return meter.memory(memory_plan.resolve_setup(experiment, 1, 1))


def read_free_memory() -> list[int]:
    """Return the free bytes of each GPU. They are read in a separate process, so that this one, which computes nothing,
    uses no GPU memory."""
    import torch

    if not torch.cuda.device_count():
        return []
    process = subprocess.run([sys.executable, "-c", _FREE], capture_output=True, text=True, check=False)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        raise _make_error(f"the free memory of the GPUs cannot be read: {reason}", None)
    return [int(word) for word in process.stdout.split()]


def _make_error(text: str, value: object) -> ConfigError:
    return ConfigError([Problem(OPTION, text, value)], "the command line")
