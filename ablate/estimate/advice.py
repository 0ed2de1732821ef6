"""What is said where a device is out of memory: what the plan says that the run needs, and what would fit."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace

from ablate.estimate.gpus import GIB
from ablate.estimate.memory import PARTS, Memory, Meter, usable
from ablate.estimate.plan import Fitting, find_fitting
from ablate.estimate.setup import setup_of
from ablate.experiment.tree import Experiment

SECONDS = 30.0  # that advice may take
_SHOWN = 2  # settings that fit


def advice(
    experiment: Experiment, precision: str, classes: int, shape: tuple[int, ...], devices: int, seconds: float = SECONDS
) -> str:
    """One line: the parts of the memory of each of `devices` by the plan, what can be used of it, and the nearest
    settings that fit. "" where the plan does not know the setting, fails, or is not made in so many seconds: it may
    never stand in the way of the error that it explains."""

    def plan() -> str:
        setup = replace(setup_of(experiment, devices, 1), precision=precision)
        gpu, capacity = capacity_here()
        meter = Meter(experiment, classes, shape, gpu=gpu)
        memory = meter.memory(setup)
        return told(memory, capacity, () if memory.fits(capacity) else find_fitting(setup, meter, capacity))

    return _within(seconds, plan)


def capacity_here() -> tuple[bool, float]:
    """Whether models are on a GPU here, and the bytes that it has, or the machine."""
    import torch

    if torch.cuda.is_available():
        return True, torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    known = hasattr(os, "sysconf")
    return False, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if known else 16 * GIB


def told(memory: Memory, capacity: float, found: tuple[Fitting, ...]) -> str:
    """The plan on one line."""
    parts = ", ".join(f"{name} {memory.parts[name] / GIB:.2f}" for name in PARTS)
    start = f"By the plan a device needs {memory.peak / GIB:.2f} GiB ({parts}) of {usable(capacity) / GIB:.2f}"
    if memory.fits(capacity):
        return f"{start}: it fits, so something else holds memory of the device."
    if not found:
        return f"{start}, and no setting makes that fit."
    ways = " or ".join(f"{' '.join(f.words)} ({f.memory.peak / GIB:.2f} GiB)" for f in found[:_SHOWN])
    return f"{start}. What fits: {ways}."


def _within(seconds: float, make: Callable[[], str]) -> str:
    """What `make` returns; "" where it fails or takes longer."""
    made: list[str] = []

    def run() -> None:
        with contextlib.suppress(BaseException):  # whatever it is, the error that is being told matters more
            made.append(make())

    thread = threading.Thread(target=run, name="advice", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no memory for a thread
        return ""
    thread.join(seconds)
    return made[0] if made else ""
