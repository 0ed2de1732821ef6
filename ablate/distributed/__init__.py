"""Processes that train one model together: their group, the collectives, how they are launched, and Slurm."""
