"""The GPU of this machine, as one of the table that plans are made for."""

from __future__ import annotations

import re

import torch

from ablate.estimate.gpus import GPU, GPUS


def detect_gpu(device: int = 0) -> GPU | None:
    """Return the GPU that torch detects, with the memory that torch reports; None for one that is not in the table."""
    called = torch.cuda.get_device_name(device)
    memory = torch.cuda.get_device_properties(device).total_memory
    known = match_gpu(called, memory)
    return known and GPU(known.name, memory, known.bf16, known.float32)


_NEUTRAL = re.compile(r"nvidia|tesla|geforce|hbm\w*|sxm\d?|pcie|\d+gb")
"""Words in a driver's name that do not change a GPU's peak. Any other word, such as Ti, D, Laptop or MIG, names a
different device."""


def match_gpu(called: str, memory: float) -> GPU | None:
    """Return the GPU with this driver name, such as "NVIDIA H100 80GB HBM3", and about this memory; None for an unknown
    one: no peak is better than another device's."""
    words = set(called.lower().replace("-", " ").split())
    own = {gpu.name: {word for word in gpu.name.split("-") if not word.endswith("gb")} for gpu in GPUS.values()}
    fitting = [
        gpu
        for gpu in GPUS.values()
        if own[gpu.name] <= words and all(_NEUTRAL.fullmatch(word) for word in words - own[gpu.name])
    ]
    # of those with the same words the most of them, and then the nearest memory
    return max(fitting, key=lambda gpu: (len(own[gpu.name]), -abs(gpu.memory - memory)), default=None)
