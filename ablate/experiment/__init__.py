"""One training run as one validated, frozen tree.

`tree` holds `Experiment`, which Ablate's own trainer trains, `trainable` what a sweep asks of any experiment, `command`
one that is a command, `lightning_module` one that is somebody else's LightningModule; the other modules define the
fields of parts whose behaviour is in higher layers: trainer, warm start, adapters, alignment, evaluation, measurements.
Fields and checks only, no behaviour.
"""

from ablate.experiment.command import CommandExperiment
from ablate.experiment.lightning_module import LightningExperiment
from ablate.experiment.tree import Experiment

__all__ = ["CommandExperiment", "Experiment", "LightningExperiment"]
