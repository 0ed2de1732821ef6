"""The global generators of Python, numpy and PyTorch, seeded for one item and restored afterwards: random changes of an
item are then a function of (seed, epoch, item) alone, whichever worker or rank reads it and wherever a run was resumed.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np

from ablate.config.lazy import torch

IMAGE, PAIR, SAMPLE = 2, 3, 4
"""The streams of random numbers below a seed; the order of the data is stream 1."""


def seed_generators(seed: int, *stream: int) -> None:
    """Seed the global generators of Python, numpy and PyTorch (on the CPU) for each (seed, stream)."""
    python, numpy, pytorch = np.random.SeedSequence(seed, spawn_key=stream).generate_state(3)
    random.seed(int(python))
    np.random.seed(numpy)
    torch.default_generator.manual_seed(int(pytorch))


@contextlib.contextmanager
def keep_generators() -> Iterator[None]:
    """Restore the states of the three generators afterwards."""
    python, numpy, pytorch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(pytorch)
