"""Measurements on the layers of a model: why a placement wins.

Each measurement is one class in a module of its own; importing the package registers them, in the order of these lines.
"""

from ablate.diagnostics.measures.angular import Angular, angular_distance

# isort: split
from ablate.diagnostics.measures.pruning import Pruning

# isort: split
from ablate.diagnostics.measures.gradients import Gradients
from ablate.diagnostics.measures.jacobian import Jacobian
from ablate.diagnostics.measures.variance import Variance

# isort: split
from ablate.diagnostics.measures.base import Measurement, Metric, Options, Result, chosen, measurements, register
from ablate.diagnostics.measures.layers import Layers
from ablate.diagnostics.measures.subject import Batch, Subject
from ablate.diagnostics.streaming import measure

__all__ = [
    "Angular",
    "Batch",
    "Gradients",
    "Jacobian",
    "Layers",
    "Measurement",
    "Metric",
    "Options",
    "Pruning",
    "Result",
    "Subject",
    "Variance",
    "angular_distance",
    "chosen",
    "measure",
    "measurements",
    "register",
]
