"""FLOPs, memory, GPUs and time of a run or a sweep. All such estimates are computed here."""
