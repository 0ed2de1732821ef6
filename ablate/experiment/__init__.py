"""One training run as one validated, frozen tree.

`tree` holds `Experiment`; beside it are the fields of those parts whose behaviour lies on higher floors: the trainer's,
a warm start's, adapters', an alignment's, an evaluation's, the measurements'. Fields and checks only, no behaviour;
`observers` also says how each callback and logger is built.
"""

from ablate.experiment.tree import Experiment

__all__ = ["Experiment"]
