"""The cores and GPUs of this machine, shared out among the workers of a sweep."""

from __future__ import annotations

import os
from typing import NamedTuple

from ablate.distributed.ranks import count_cores
from ablate.estimate.memory import RESERVE

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
    import torch

    there, jobs = torch.cuda.device_count(), read_sharing()
    known = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = known.split(",") if known else [str(i) for i in range(there)]
    if not there:
        return Devices(None, 1)
    each = len(visible) // workers
    if each:
        return Devices(",".join(visible[slot * each : (slot + 1) * each]), jobs)
    gpu = slot % len(visible)
    return Devices(visible[gpu], jobs * len(range(gpu, workers, len(visible))))


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
    torch.cuda.set_per_process_memory_fraction(max(part - RESERVE, part / 2) / total)
