"""The search of a sweep: its space, samplers, pruners and methods."""

from ablate.sweeps.search import rungs  # noqa: F401 - registers a search method
