"""One training run as one validated, frozen tree.

`tree` holds `Experiment`; the other modules define the fields of parts whose behaviour is in higher layers: trainer,
warm start, adapters, alignment, evaluation, measurements. Fields and checks only, no behaviour.
"""

from ablate.experiment.tree import Experiment

__all__ = ["Experiment"]
