"""The processes that read data."""

from __future__ import annotations

import torch

from ablate.data import BatchDataset, TrainSet
from ablate.distributed import ranks
from ablate.experiment.trainer import MOST_WORKERS, TrainerConfig


def count_workers(config: TrainerConfig, data: TrainSet | BatchDataset) -> int:
    """Return the processes that read `data` for this rank. The cores of a process that is alone are those that it
    computes on: the workers of a sweep share them."""
    if config.num_workers != "auto":
        return config.num_workers
    if not torch.cuda.is_available():
        return 0
    cores = torch.get_num_threads() if ranks.world_size() == 1 else ranks.count_cores() // ranks.local_size()
    count = getattr(data, "count_workers", lambda cores: 0)  # a plugin's own may not say
    return min(MOST_WORKERS, int(count(max(1, cores - 1))))
