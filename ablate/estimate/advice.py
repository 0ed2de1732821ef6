"""Advice for a device that is out of memory: the run's planned memory, and settings that fit."""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace

from ablate.estimate.gpus import GIB
from ablate.estimate.memory import PARTS, RESERVE, Meter, subtract_reserve
from ablate.estimate.plan import find_fitting
from ablate.estimate.setup import resolve_setup
from ablate.experiment.tree import Experiment

SECONDS = 30.0  # that advice may take
_SHOWN = 2  # settings that fit


def advise(
    experiment: Experiment, precision: str, classes: int, shape: tuple[int, ...], devices: int, seconds: float = SECONDS
) -> str:
    """Return one line: the planned memory of each of `devices` by parts, the usable memory, and the nearest settings
    that fit. "" if the plan does not support the setting, fails, or takes more than so many seconds: it must not hide
    the error that it explains."""

    def plan() -> str:
        setup = replace(resolve_setup(experiment, devices, 1), precision=precision)
        gpu, capacity = detect_capacity()
        meter = Meter(experiment, classes, shape, gpu=gpu)
        memory = meter.memory(setup)
        parts = ", ".join(f"{name} {memory.parts[name] / GIB:.2f}" for name in PARTS)
        usable = subtract_reserve(capacity) / GIB
        start = f"By the plan a device needs {memory.peak / GIB:.2f} GiB ({parts}) of {usable:.2f}"
        if memory.fits(capacity):
            return f"{start}: it fits, so another program uses memory of the device."
        if not (fitting := find_fitting(setup, meter, capacity)):
            return f"{start}, and no setting makes it fit."
        ways = " or ".join(f"{' '.join(f.words)} ({f.memory.peak / GIB:.2f} GiB)" for f in fitting[:_SHOWN])
        return f"{start}. Settings that fit: {ways}."

    results: list[str] = []

    def run() -> None:
        with contextlib.suppress(BaseException):  # whatever it is, the error that is explained matters more
            results.append(plan())

    thread = threading.Thread(target=run, name="advice", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no memory for a thread
        return ""
    thread.join(seconds)
    return results[0] if results else ""


def detect_capacity() -> tuple[bool, float]:
    """Return whether models are on a GPU here, and the memory of the GPU or else of the machine, in bytes."""
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)()  # of a worker that shares it
        return True, total if share >= 1 else share * total + RESERVE
    known = hasattr(os, "sysconf")
    return False, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if known else 16 * GIB
