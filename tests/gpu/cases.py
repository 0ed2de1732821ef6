"""What is run on a device that is not there."""

import itertools
import os
from typing import get_args

from norms import cases
from norms.cases import WITHOUT, list_placements, sensible

from ablate.config import plugins
from ablate.experiment.trainer import TrainerConfig
from ablate.models import models
from ablate.norms import norm_layers, placements

plugins.load()  # the papers' families
SIZED = [kind for kind in models if not models[kind].of_library]
PRECISIONS = [name for name in get_args(TrainerConfig.model_fields["precision"].annotation) if name != "auto"]


def takes(family, kind):
    """Whether a family takes a placement: one that norms queries and keys itself is not for one that does, too."""
    norms_queries = placements.parse(kind).qkv_norm or placements.parse(kind).on_sphere
    return cases.takes(family, kind) and not ("norm.qk.kind" in models[family].defaults and norms_queries)


def each_once():
    """(family, placement, norm layer, precision): every family with every precision, every placement and every norm
    layer that a family can have, once."""
    families, layers = itertools.cycle(kind for kind in SIZED if models[kind].has_residuals), list(norm_layers)
    wired = [(next(one for one in families if takes(one, kind)), kind) for kind in placements]
    others = [(family, "summed_inputs") for family in SIZED if not models[family].has_residuals]
    for number, (family, kind) in enumerate([*wired, *others]):
        fitting = (layer for layer in layers if sensible(family, layer) and (kind, layer) not in WITHOUT)
        layer = next(fitting)  # that which was longest not taken
        layers.remove(layer)
        layers.append(layer)
        yield family, kind, layer, PRECISIONS[number % len(PRECISIONS)]


def all_of_them():
    """The full product of these."""
    for family, layer, precision in itertools.product(SIZED, norm_layers, PRECISIONS):
        kinds = list_placements(family) if sensible(family, layer) else ()
        for kind in (kind for kind in kinds if takes(family, kind) and (kind, layer) not in WITHOUT):
            yield family, kind, layer, precision


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
