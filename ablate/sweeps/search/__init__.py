"""The search of a sweep: its space, samplers and pruners."""

from ablate.sweeps.search import hub  # noqa: F401 - registers the samplers of OptunaHub
