"""The search of a sweep: its space, samplers, pruners and methods."""

from ablate.sweeps.search import (
    hub,  # noqa: F401 - registers the samplers of OptunaHub
    rungs,  # noqa: F401 - registers a search method
)
