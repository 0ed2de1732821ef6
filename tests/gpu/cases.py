"""What is run on a device that is not there."""

import itertools
import os
from typing import get_args

from norms.cases import sensible

from ablate.experiment.trainer import TrainerConfig
from ablate.models import models
from ablate.norms import norm_layers, placements

SIZED = [kind for kind in models if not models[kind].of_library]
PRECISIONS = [name for name in get_args(TrainerConfig.model_fields["precision"].annotation) if name != "auto"]


def each_once():
    """(family, placement, norm layer, precision): every family with every precision, every placement and every norm
    layer that a family can have, once."""
    families, layers = itertools.cycle(SIZED), list(norm_layers)
    for number, kind in enumerate(placements):
        family = next(families)
        layer = next(layer for layer in layers if sensible(family, layer))  # that which was longest not taken
        layers.remove(layer)
        layers.append(layer)
        yield family, kind, layer, PRECISIONS[number % len(PRECISIONS)]


def all_of_them():
    """The full product of these."""
    for case in itertools.product(SIZED, placements, norm_layers, PRECISIONS):
        if sensible(case[0], case[2]):
            yield case


FULL = os.environ.get("ABLATE_GPU_CASES") == "all"
UPDATES = 4
"""The first and the last of them log; before the last is a validation."""
STEPS = {"-".join(case): case for case in (all_of_them() if FULL else each_once())}

SHARED = {
    "llama bf16-mixed": ("llama", "bf16-mixed", 2),
    "llama 32-true": ("llama", "32-true", 2),
    "llama bf16-true": ("llama", "bf16-true", 2),
    "vit bf16-mixed": ("vit", "bf16-mixed", 2),
}
"""Name -> family, precision, layers of a model that 64 ranks share."""
