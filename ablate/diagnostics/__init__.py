"""Measurements on the layers of a model: why a placement wins.

Each measurement is one class in a module of its own; importing the package registers them, in the order of these lines.
"""

from ablate.diagnostics.angular import Angular, angular_distance

# isort: split
from ablate.diagnostics.pruning import Pruning

# isort: split
from ablate.diagnostics.gradients import Gradients
from ablate.diagnostics.jacobian import Jacobian
from ablate.diagnostics.variance import Variance

# isort: split
from ablate.diagnostics.layers import Layers
from ablate.diagnostics.measurement import Measurement, Metric, Options, Result, chosen, measurements, register
from ablate.diagnostics.streaming import measure
from ablate.diagnostics.subject import Batch, Subject

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
