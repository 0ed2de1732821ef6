"""Measurements on the layers of a model, one class in each module. Importing this package registers them, in the
order of their output."""

from ablate.diagnostics.measures.angular import Angular, angular_distance

# isort: split
from ablate.diagnostics.measures.pruning import Pruning

# isort: split
from ablate.diagnostics.measures.gradients import Gradients
from ablate.diagnostics.measures.jacobian import Jacobian
from ablate.diagnostics.measures.spectral import Spectral

# isort: split
from ablate.diagnostics.measures.block_jacobian import BlockJacobian
from ablate.diagnostics.measures.variance import Variance

# isort: split
from ablate.diagnostics.measures.streams import Streams

# isort: split
from ablate.diagnostics.measures.base import Measurement, Metric, Options, Result, measurements, register, select
from ablate.diagnostics.measures.layers import Layers
from ablate.diagnostics.measures.subject import Batch, Subject

__all__ = [
    "Angular",
    "Batch",
    "BlockJacobian",
    "Gradients",
    "Jacobian",
    "Layers",
    "Measurement",
    "Metric",
    "Options",
    "Pruning",
    "Result",
    "Spectral",
    "Streams",
    "Subject",
    "Variance",
    "angular_distance",
    "measurements",
    "register",
    "select",
]
