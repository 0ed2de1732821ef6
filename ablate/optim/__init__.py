"""Optimizers, learning-rate schedules and parameter groups."""

from ablate.optim import by_name  # noqa: F401 - registers the optimizers of torch and timm
